-- How a gate refuses an entry.
--@include settle
local function drop(lane, entry)
  redis.call('XACK', K[lane], GROUP, entry)
  redis.call('XDEL', K[lane], entry)
end

-- Settles the job with an outcome, whose file the gate includes. The entry is dropped first, as in every settling: the
-- outcome then writes the job's next place. `number` is the number that goes with the outcome, such as a TTL.
local function refuse(lane, entry, job, kind, value, number)
  drop(lane, entry)
  settle_job(job, lane .. '/' .. entry, kind, number or failure_ttl, value)
end

-- The job did not run, so the number of its tries stays what it is in the record.
local function refuse_failed(lane, entry, job, f, kind, type, problem, why)
  local failure = cjson.encode({type = type, message = problem, traceback = '', reason = why, tries = tonumber(f[F.tries]) or 0})
  refuse(lane, entry, job, kind, failure)
end
