-- The end of a job: see `run_over`. `ttl` is how long the result is kept; nil for a dead job.
--
-- A record is marked when a leaving has to act at its end: a client waits, a key or a history expires with it, or the job
-- was asked to stop. The mark is the field `ended`, which is empty until the end. Success writes that field anyway, so the reply of its one
-- HSET shows whether the record was marked. For most jobs it was not, and success does not need to call `job_ended`. A
-- marked record must have the field `status` as well, because HSET counts every field that is new. A leaving that must
-- also act on unmarked jobs has a line `--@every job` in its header; then `ONLY_MARKED` is false.
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
