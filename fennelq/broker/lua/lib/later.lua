-- Adds a job to a set of jobs that wait for their due time, and wakes the promoters when it is the first that will be due.
-- The message contains the time from now and not a moment, because the executors' clocks may be wrong. A promoter that
-- misses the message looks again by itself, so an error of PUBLISH is ignored.
local function later(set, job, due)
  redis.call('ZADD', set, due, job)
  if redis.call('ZRANGE', set, 0, 0)[1] == job then
    redis.pcall('PUBLISH', prefix .. 'wake', math.max(0, due - now))
  end
end
