#!lua flags=allow-oom
local cron_due = KEYS[1]
local cron_meta = KEYS[2]
local cron_versions = KEYS[3]
local cron_names = KEYS[4]
local cron_queued = KEYS[5]
local prefix = ARGV[1]
local digest = ARGV[2]
local patience = ARGV[3]
local first, stride = 4, 3
-- The server's clock, read once: due times, expiry and stamps of one script agree, and no client clock decides.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- Redis formats a Lua number anew for every call it is passed to; a text is copied.
local stamp = string.format('%.0f', now)

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

-- declare: makes the schedules in Redis those that the code declares.
--
-- Each version of the code is known by the digest of all it declares. Two versions may run at once during a deploy: the
-- one that came later holds, and an older one that restarts changes nothing. It takes over again (a rollback) once the
-- later one has not looked for `patience`.
--
-- New schedules are added, changed ones changed, vanished ones removed. A paused one stays paused; those made at run time
-- are left alone, unless the code now declares their name.
--
-- Answers 1 when the schedules are now this version's · 0 when a later version holds.
--
--@keys cron:due, cron:meta, cron:versions, cron:names, cron:queued
--@args prefix, digest, patience
--@each name, definition, next_due
--@include now, cron
--@flags allow-oom

local VERSIONS = 50

local known = redis.call('HMGET', cron_meta, 'digest', 'heard')
local current, silence = known[1], math.abs(now - (tonumber(known[2]) or 0))

if current ~= digest and redis.call('ZSCORE', cron_versions, digest) and silence < tonumber(patience) then return 0 end

redis.call('HSET', cron_meta, 'digest', digest, 'heard', stamp)
if current == digest then return 1 end
redis.call('ZADD', cron_versions, 'NX', stamp, digest)
redis.call('ZREMRANGEBYRANK', cron_versions, 0, -VERSIONS - 1)

local declared = {}
for i = first, #ARGV, stride do
  local name = ARGV[i]
  declared[name] = true
  put(name, ARGV[i + 1], ARGV[i + 2], 'code')
end
for _, name in ipairs(redis.call('SMEMBERS', cron_names)) do
  if not declared[name] and redis.call('HGET', state_of(name), 'source') == 'code' then remove(name) end
end
tell()
return 1
