-- A job that leaves its lane must find back to it. While it is in a lane its place names that lane, and the normal lane is
-- the default, so most jobs never write this field.
local function keep_lane(record, lane)
  if lane ~= NORMAL and lane ~= QUARANTINE then redis.call('HSET', record, F.lane, lane) end
end
