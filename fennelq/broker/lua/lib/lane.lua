-- Stores the lane of a job that leaves it, so that the job can return to it. While a job is in a lane, its place names that
-- lane; without the field it returns to the normal lane. So most jobs never write this field.
local function keep_lane(record, lane)
  if lane ~= NORMAL and lane ~= QUARANTINE then redis.call('HSET', record, F.lane, lane) end
end
