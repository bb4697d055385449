-- died: records how the process of an executor has ended, as its supervisor saw it.
--
-- Executors that recover its jobs read `deaths`. They do so soon: it has the latest deaths, at most MOST, of the last
-- `told` ms. A value is the time of the death and the text, with a blank between.
--
-- Returns the server's time in ms.
--
--@args prefix, executor, fate, recent, told
--@include now
--@flags allow-oom

local MOST = 50

redis.call('HSET', K.executors, executor, cjson.encode({died = fate, beat_ms = now}))
redis.call('ZADD', K.alive, string.format('%.0f', now - recent - 1), executor)

local deaths, latest = redis.call('HGETALL', K.deaths), {}
for i = 1, #deaths, 2 do
  local at = tonumber(string.match(deaths[i + 1], '^%d+')) or 0
  if at < now - told or at > now then
    redis.call('HDEL', K.deaths, deaths[i])
  else
    latest[#latest + 1] = {at, deaths[i]}
  end
end
table.sort(latest, function(a, b) return a[1] > b[1] end)
for i = MOST, #latest do redis.call('HDEL', K.deaths, latest[i][2]) end
redis.call('HSET', K.deaths, executor, stamp .. ' ' .. fate)
redis.call('PEXPIRE', K.deaths, told)
return now
