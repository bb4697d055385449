-- A line of a job's unusual life: a retry, a release, a recovery. Jobs that simply run have no history, and pay nothing
-- for it. The list ends with the record, which knows of it. An error of RPUSH is ignored: a job is worth more than its
-- history.
--@include keys, run
local HISTORY = 50

local function remember(record, job, what, more)
  local owner, begun = run_of(redis.call('HGET', record, F.run))
  local line = cjson.encode({at = now, what = what, owner = owner, begun = tonumber(begun), more = more})
  redis.pcall('RPUSH', history_of(job), line)
  redis.pcall('LTRIM', history_of(job), -HISTORY, -1)
  redis.call('HSET', record, F.history, '1', F.ended, '')
end
