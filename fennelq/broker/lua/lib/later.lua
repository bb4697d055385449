-- Puts a job where it waits for its time, and wakes the promoters when it is the first that will be due. They are told
-- how long from now, not when: their clocks may be wrong. Nobody loses a job because they cannot be told.
local function later(set, job, due)
  redis.call('ZADD', set, due, job)
  if redis.call('ZRANGE', set, 0, 0)[1] == job then
    redis.pcall('PUBLISH', prefix .. 'wake', math.max(0, due - now))
  end
end
