-- A schedule's state: definition, source, next, paused, last_run, last_job, runs, skipped, last_error, last_error_at.
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
