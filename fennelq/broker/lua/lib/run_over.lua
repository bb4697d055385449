-- Every run that is over and did not end its job comes through `run_over`; every end of a job through `job_ended`.
--
-- `lua/leaving` has one file for each thing that acts then. A leaving names the cases that it acts in, and the fields of
-- the record it needs, of which the first must be there: `--@when ended, later: watchers`. The cases: `ended` · `later`,
-- the job will run again after a time (a retry, a snooze, a worker that is too old) · `again`, it is back in its lane
-- (release, recovery, replay). In each of them a leaving knows `how`, `record`, `job`, `what` and `more`: a line for the
-- history, or of an end the letter of its outcome and the envelope, and then also `keep`, the ms that the record is kept
-- (nil for a dead job, whose record has no TTL).
--
-- By now the caller has written the record and the result. A leaving runs in a pcall of its own, so its error undoes
-- nothing of that and stops no other leaving: it is counted as `leaving_failed`. They act in this order:
--
--@leavings waiters, history, idempotency
--@include counts
local function run_over(how, record, job, what, more)
  -- The record stays as it is kept: the job goes on.
  local keep
  --@read later, again
  --@leave later, again
end
