-- The end of a job: see `run_over`. `ttl` is how long the result is kept; nil for a dead job.
--
-- A record is marked when its end concerns others: a client waits, or a key or a history ends with it. The mark is the
-- field `ended`, empty until the end. So success, which writes that field anyway, learns from the reply of its one HSET
-- whether the record was marked, and does not call this for all other jobs, which are most. A marked record has the field
-- `status` as well, because HSET counts every field that is new. A leaving that must act on unmarked jobs too has a line
-- `--@every job` in its header; `ONLY_MARKED` is false then.
--@include run_over, result
--@reads kept_at_least
local function job_ended(record, job, what, more, ttl)
  local how, keep = 'ended', nil
  --@read ended
  if ttl then
    keep = keep_for(ttl, kept_at_least)
    redis.call('PEXPIRE', record, keep)
  end
  --@leave ended
end
