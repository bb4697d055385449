-- Adds a job to a set of jobs that wait for their due time. If it is the first that will be due, the script tells a
-- sleeping executor at its end.
--@include wake
local function later(set, job, due)
  redis.call('ZADD', set, due, job)
  if (not soonest or due < soonest) and redis.call('ZRANGE', set, 0, 0)[1] == job then soonest = due end
end
