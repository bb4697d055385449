-- A schedule's state: definition, source, next, paused, last_run, last_job, runs, skipped, last_error, last_error_at.
local function state_of(name) return prefix .. 'cron:s:' .. name end

local function set_next(name, next_due)
  redis.call('HSET', state_of(name), 'next', next_due)
  if next_due == '' or redis.call('HGET', state_of(name), 'paused') == '1' then
    redis.call('ZREM', cron_due, name)
  else
    redis.call('ZADD', cron_due, next_due, name)
  end
end

-- When a definition runs; whatever else of it changes, a tick that is due stays due.
local function times_of(definition)
  local _, said = pcall(cjson.decode, definition)
  if type(said) ~= 'table' then return definition end
  local times = {}
  for _, field in ipairs({'cron', 'every_ms', 'tz', 'start_ms', 'end_ms'}) do times[#times + 1] = tostring(said[field]) end
  return table.concat(times, '|')
end

-- Adds a schedule, or changes it; one that keeps its times keeps its next.
local function put(name, definition, next_due, source)
  local state = state_of(name)
  local known = redis.call('HMGET', state, 'definition', 'next')
  local same = times_of(known[1]) == times_of(definition)
  redis.call('SADD', cron_names, name)
  redis.call('HSET', state, 'definition', definition, 'source', source)
  set_next(name, same and known[2] or next_due)
end

local function remove(name)
  redis.call('ZREM', cron_due, name)
  redis.call('SREM', cron_names, name)
  redis.call('HDEL', cron_queued, name)
  redis.call('DEL', state_of(name))
end

-- Executors sleep until the next due time they know of.
local function tell() redis.pcall('PUBLISH', prefix .. 'wake', 'cron') end
