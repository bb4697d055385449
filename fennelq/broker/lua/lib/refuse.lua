-- What a gate does with an entry that may not start.
--@include settle
local function drop(lane, entry)
  redis.call('XACK', K[lane], GROUP, entry)
  redis.call('XDEL', K[lane], entry)
end

-- Settles the job with an outcome, which the gate includes. The entry goes first: from here on the job is where its
-- outcome puts it. `number` is what an outcome needs besides its value, such as the time of a snooze.
local function refuse(lane, entry, job, kind, value, number)
  drop(lane, entry)
  settle_job(job, lane .. '/' .. entry, kind, number or failure_ttl, value)
end

local function refuse_failed(lane, entry, job, kind, type, problem, why)
  local failure = cjson.encode({type = type, message = problem, traceback = '', reason = why, tries = 0})
  refuse(lane, entry, job, kind, failure)
end
