-- Puts a job at the end of a lane and writes the place into its record. With the new entry the job has a new token, so
-- an executor that still holds an earlier entry cannot settle it.
--@include entries
local function ready(record, job, lane, deliveries)
  redis.call('HSET', record, F.status, 'Q', F.place, lane .. '/' .. add_entry(lane, job, deliveries))
end
