-- Adds, changes and removes schedules.
--@include cron, definitions, services
local function disown(name, source)
  local service = service_of(source)
  if service then redis.call('ZREM', schedules_of(service), name) end
end

-- Adds a schedule, or changes it. If its times stay the same, so does its next tick: a deploy must not postpone a tick
-- that is due.
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

-- Executors sleep until the next due time that they know of, so a change must wake them. An error of PUBLISH is ignored:
-- executors also look from time to time.
local function announce_schedules() redis.pcall('PUBLISH', prefix .. 'wake', 'cron') end
