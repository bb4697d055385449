-- died: records how the process of an executor has ended, as its supervisor saw it.
--
-- Executors that recover its jobs read `deaths`. It has the deaths of the last hour, and is emptied when it has MOST: then
-- the fleet is in trouble that no list explains.
--
-- Returns the server's time in ms.
--
--@args prefix, executor, fate, recent, forgotten
--@include now
--@flags allow-oom

local MOST = 1000

redis.call('HSET', K.executors, executor, cjson.encode({died = fate, beat_ms = now}))
redis.call('ZADD', K.alive, string.format('%.0f', now - recent - 1), executor)
if redis.call('HLEN', K.deaths) >= MOST then redis.call('DEL', K.deaths) end
redis.call('HSET', K.deaths, executor, fate)
redis.call('PEXPIRE', K.deaths, forgotten)
return now
