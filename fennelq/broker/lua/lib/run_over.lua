-- Scripts call `run_over` for every run that has ended without ending its job, and `job_ended` for every end of a job.
--
-- Both call the leavings, one file each in `lua/leaving`. A leaving lists the cases in which it acts, and the fields of
-- the record that it needs, for example `--@when ended, later: watchers`. It is called only if the record has the first
-- of these fields. The cases: `ended` · `later`, the job will run again after a time (a retry, a snooze, a worker that
-- is too old) · `again`, the job is back in its lane (release, recovery, replay).
--
-- A leaving may use `how` (the case), `record`, `job`, `what` and `more`. In the case `ended`, `what` is the letter of
-- the outcome, `more` the envelope, and `keep` the ms for which the record is kept (nil for a dead job, whose record
-- has no TTL). In the other cases, `what` and `more` are for a line of the history.
--
-- The caller has written the record and the result by now. Each leaving runs in a pcall of its own, so that an error
-- neither ends the script, with the job half settled, nor stops the other leavings. It is counted as `leaving_failed`.
-- They act in this order:
--
--@leavings twin, waiters, history, idempotency, stopping, limits, ends
--@include counts
local function run_over(how, record, job, what, more)
  -- Stays nil: the job goes on, so its record gets no TTL.
  local keep
  --@read later, again
  --@leave later, again
end
