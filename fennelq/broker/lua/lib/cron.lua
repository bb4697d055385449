-- A schedule's state: definition, source, next, paused, last_run, last_job, runs, skipped, last_error, last_error_at.
local function state_of(name) return prefix .. 'cron:s:' .. name end

-- A service declares schedules in its code. `cron:sources` holds what is known of each service (digest, heard, seen,
-- legacy, at, round, sweep); the two keys below hold its schedules, and those that another service keeps from it.
local function schedules_of(service) return prefix .. 'cron:of:' .. service end
local function denied_to(service) return prefix .. 'cron:denied:' .. service end

-- The source of a schedule: 'runtime', or 'code:' and the service that declares it. A fennelq from before there were
-- services wrote 'code' alone, and one that still runs removes only the schedules with exactly this source.
local LEGACY, CODE = 'code', 'code:'

local function service_of(source)
  return source and string.sub(source, 1, #CODE) == CODE and string.sub(source, #CODE + 1) or nil
end

local function is_of_code(source) return source == LEGACY or service_of(source) ~= nil end

local function set_next(name, next_due)
  redis.call('HSET', state_of(name), 'next', next_due)
  if next_due == '' or redis.call('HGET', state_of(name), 'paused') == '1' then
    redis.call('ZREM', K.due, name)
  else
    redis.call('ZADD', K.due, next_due, name)
  end
end

-- A definition as a table; an empty one when it cannot be read.
local function decoded(definition)
  local _, fields = pcall(cjson.decode, definition)
  return type(fields) == 'table' and fields or {}
end

-- When a definition runs; whatever else of it changes, a tick that is due stays due.
local function times_of(definition)
  local fields, times = decoded(definition), {}
  for _, field in ipairs({'cron', 'every_ms', 'tz', 'start_ms', 'end_ms'}) do times[#times + 1] = tostring(fields[field]) end
  return table.concat(times, '|')
end

local function disown(name, source)
  local service = service_of(source)
  if service then redis.call('ZREM', schedules_of(service), name) end
end

-- Adds a schedule, or changes it; one that keeps its times keeps its next.
local function put(name, definition, next_due, source)
  local state = state_of(name)
  local known = redis.call('HMGET', state, 'definition', 'next', 'source')
  local same = times_of(known[1]) == times_of(definition)
  disown(name, known[3])
  redis.call('SADD', K.names, name)
  redis.call('HSET', state, 'definition', definition, 'source', source)
  set_next(name, same and known[2] or next_due)
end

local function remove(name)
  disown(name, redis.call('HGET', state_of(name), 'source'))
  redis.call('ZREM', K.due, name)
  redis.call('SREM', K.names, name)
  redis.call('HDEL', K.queued, name)
  redis.call('DEL', state_of(name))
end

-- Executors sleep until the next due time they know of.
local function tell() redis.pcall('PUBLISH', prefix .. 'wake', 'cron') end
