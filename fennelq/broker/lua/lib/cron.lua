-- A schedule's state: definition, source, next, paused, last_run, last_job, runs, skipped, last_error, queued.
local function state_of(name) return prefix .. 'cron:s:' .. name end

local function set_next(name, next_due)
  redis.call('HSET', state_of(name), 'next', next_due)
  if next_due == '' or redis.call('HGET', state_of(name), 'paused') == '1' then
    redis.call('ZREM', cron_due, name)
  else
    redis.call('ZADD', cron_due, next_due, name)
  end
end

-- Adds a schedule, or changes it; one that stays the same keeps its next time.
local function put(name, definition, next_due, source)
  local state = state_of(name)
  local same = redis.call('HGET', state, 'definition') == definition
  redis.call('SADD', cron_names, name)
  redis.call('HSET', state, 'definition', definition, 'source', source)
  if not same then set_next(name, next_due) end
end

local function remove(name)
  redis.call('ZREM', cron_due, name)
  redis.call('SREM', cron_names, name)
  redis.call('DEL', state_of(name))
end
