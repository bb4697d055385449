-- A schedule's state: definition, source, next, paused, last_run, last_job, runs, skipped, last_error, last_error_at,
-- errors, failed_job.
local function state_of(name) return prefix .. 'cron:s:' .. name end

-- A schedule without a next time, or one that is paused, is not due.
local function set_next(name, next_due)
  redis.call('HSET', state_of(name), 'next', next_due)
  if next_due == '' or redis.call('HGET', state_of(name), 'paused') == '1' then
    redis.call('ZREM', K.due, name)
  else
    redis.call('ZADD', K.due, next_due, name)
  end
end

-- Keeps the error of the run before, which is that of `job`, and counts it once.
local function note_error(state, job, error, at)
  if error == '' then return end
  redis.call('HSET', state, 'last_error', error, 'last_error_at', at)
  if redis.call('HGET', state, 'failed_job') ~= job then
    redis.call('HSET', state, 'failed_job', job)
    redis.call('HINCRBY', state, 'errors', 1)
  end
end
