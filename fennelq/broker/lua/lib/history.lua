-- Writes a line of the history: about a retry, a release, a recovery. A job that runs once and succeeds has no history, so
-- it costs nothing. The record is marked, so that the end of the job sets the TTL of the list as well. An error of RPUSH
-- is ignored: a script must not fail half-way, when it has moved a job, because of the history.
--@include now, keys, run
local HISTORY = 50

local function write_line(job, what, more, run)
  local owner, begun = run_of(run)
  local line = cjson.encode({at = now, what = what, owner = owner, begun = tonumber(begun), more = more})
  redis.pcall('RPUSH', history_of(job), line)
  redis.pcall('LTRIM', history_of(job), -HISTORY, -1)
end

-- Writes a line about the latest run of a job that goes on.
local function remember(record, job, what, more)
  write_line(job, what, more, redis.call('HGET', record, F.run))
  redis.call('HSET', record, F.history, '1', F.ended, '')
end
