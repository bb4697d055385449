-- Puts a job at the end of a lane and writes the place into its record. The entry is a new one, and so is its token: an
-- executor that still holds an earlier entry of this job settles nothing any more.
--@include entries
local function ready(record, job, lane, deliveries)
  redis.call('HSET', record, F.status, 'Q', F.place, lane .. '/' .. add_entry(lane, job, deliveries))
end
