-- A line of a job's unusual life. Jobs that simply run never have one. The list ends with the record, which knows of it.
-- No job is given up because its history cannot be written.
local HISTORY = 50

local function remember(record, job, what, more)
  local owner, begun = run_of(redis.call('HGET', record, F.run))
  local line = cjson.encode({at = now, what = what, owner = owner, begun = tonumber(begun), more = more})
  redis.pcall('RPUSH', history_of(job), line)
  redis.pcall('LTRIM', history_of(job), -HISTORY, -1)
  redis.call('HSET', record, F.history, '1', F.ended, '')
end
