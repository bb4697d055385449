-- Whether a service is active, and what makes it declare its schedules anew.
--@include source, service_keys
local function recent(moment) return math.abs(now - (tonumber(moment) or 0)) < tonumber(patience) end

-- Whether a worker of the service of this source has called `look` within `patience`. Of the workers with a fennelq
-- that does not have services, only those of the version that declared last record their looks.
local function is_active(source)
  if source == LEGACY then return recent(redis.call('HGET', K.meta, 'heard')) end
  return recent(redis.call('HGET', K.sources, 'seen:' .. service_of(source)))
end

-- A service without a digest declares all its schedules with its next look. A script that takes a schedule from a
-- service calls this, so that the service adds it again, or reports the conflict, when it is active again.
local function declares_anew(source)
  local service = service_of(source)
  if service then redis.call('HDEL', K.sources, 'digest:' .. service) end
end
