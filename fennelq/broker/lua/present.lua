-- present: records that an executor is alive, with facts about it for people.
--
-- An executor reads no facts of others, because that would grow with the square of their number. It learns how many there
-- are, to share the duties with them, and how others have ended, of which there are few.
--
-- One executor of the app is the watcher, which reads the facts of all and warns. It stays the watcher while it is present;
-- when it has been absent for `recent`, another one takes its place.
--
-- `recent`: the ms for which an executor counts as alive. `forgotten`: the ms after which its facts are deleted, at most
-- PAGE per call of the watcher.
--
-- Returns {the server's time in ms, living executors, known queues, whether this is the watcher (1 or nothing), deaths}.
--
--@args prefix, executor, facts, recent, forgotten
--@include now
--@flags allow-oom

local PAGE = 100

local function is_watcher()
  local watcher = redis.call('SET', K.watcher, executor, 'NX', 'GET', 'PX', recent)
  if watcher == executor then redis.call('PEXPIRE', K.watcher, recent) end
  return not watcher or watcher == executor
end

local function forget_old()
  local old = redis.call('ZRANGEBYSCORE', K.alive, '-inf', now - forgotten, 'LIMIT', 0, PAGE)
  if #old > 0 then
    redis.call('HDEL', K.executors, unpack(old))
    redis.call('ZREM', K.alive, unpack(old))
  end
end

-- The facts are a JSON object, to which this adds the time by the server's clock.
redis.call('HSET', K.executors, executor, string.sub(facts, 1, -2) .. ',"beat_ms":' .. stamp .. '}')
redis.call('ZADD', K.alive, stamp, executor)
local watches = is_watcher()
if watches then forget_old() end
-- Not those far in the future: the clock may have been set back.
local living = redis.call('ZCOUNT', K.alive, now - recent, now + recent)
return {now, living, redis.call('SCARD', K.queues), watches, redis.call('HGETALL', K.deaths)}
