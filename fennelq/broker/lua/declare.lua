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
