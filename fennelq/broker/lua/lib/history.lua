-- A line of a job's unusual life. Jobs that simply run never have one. The list ends with the record, which knows of it.
local HISTORY = 50

local function remember(record, job, what, owner, more)
  local line = cjson.encode({at = now, what = what, owner = owner or nil, more = more})
  redis.call('RPUSH', history_of(job), line)
  redis.call('LTRIM', history_of(job), -HISTORY, -1)
  redis.call('HSET', record, 'H', '1')
end
