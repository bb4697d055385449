-- Puts a job where it waits for its time, and wakes the promoters when it is the first that will be due. The message
-- contains how long from now, not when, because the executors' clocks may be wrong. A promoter that misses the message
-- looks again by itself, so an error of PUBLISH is ignored.
local function later(set, job, due)
  redis.call('ZADD', set, due, job)
  if redis.call('ZRANGE', set, 0, 0)[1] == job then
    redis.pcall('PUBLISH', prefix .. 'wake', math.max(0, due - now))
  end
end
