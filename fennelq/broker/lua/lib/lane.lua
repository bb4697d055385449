-- Stores the lane of a job that leaves this lane, so that the job can return to it. While a job is in a lane, its place
-- names that lane. A job without this field returns to the normal lane, so most jobs never write it. A job that
-- leaves its line (`lane` is nil) has it already.
local function keep_lane(record, lane)
  if lane and lane ~= NORMAL and lane ~= QUARANTINE then redis.call('HSET', record, F.lane, lane) end
end
