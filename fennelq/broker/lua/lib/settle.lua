-- Settles jobs. The caller has removed the job from its place, or its XACK has counted the entry. Each outcome has a
-- file in `lua/outcome` that writes it, for all scripts: so an outcome looks the same whichever script wrote it.
--
-- A script has no rollback, and a job that was removed from its place must not get lost. Every outcome may end in the
-- DLQ, so the type of that key is checked before anything is written: by `lib/dead_stream`.
--
-- Most runs succeed, and nothing else happens at their end. So all functions but that of success are made when they are
-- needed.
--@include now, keys, run, counts, ends, wake, twins, lines, dead_stream

-- Outcome → the function that writes it.
local settle = {}

local ends

-- Whether the latest job that died is the only dead one of its kind.
local began_group

-- What the ends of jobs need, except for those that succeed.
local function ends_made()
  if ends then return ends end
  --@paste unless_over, bury, outcome/cancelled, outcome/dead, outcome/retry, outcome/snooze, outcome/rate_limited, outcome/too_old
  ends = {unless_over = unless_over, job_ended = job_ended, bury = bury}
  return ends
end

-- The outcome of a job could not be written.
local function settle_broken(record, job, place, problem)
  ends_made().bury(record, job, place, problem)
  count('D')
  count('broken')
end

-- Settles one job in a pcall of its own, so that one job's error does not end the whole batch. An outcome returns its
-- kind when it has written another one: a job that has been too new for every worker for too long is dead.
local function settle_job(job, place, kind, number, value)
  local record = record_of(job)
  -- A cancel stays as it is, even if the job must not run again.
  if kind ~= 'K' then
    kind, number, value = ends_made().unless_over(record, job, place, kind, number, value)
  end
  if not kind then return end
  if not settle[kind] then ends_made() end
  local ok, returned = pcall(settle[kind], record, job, place, kind, number, value)
  if ok then count(returned or kind) else settle_broken(record, job, place, returned) end
end
