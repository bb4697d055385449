-- Whether a service is there, and what it learns when it comes back.
--@include source, service_keys
local function recent(moment) return math.abs(now - (tonumber(moment) or 0)) < tonumber(patience) end

-- Whether the service of this source has been heard of within `patience`: a worker of it has looked. Of a fennelq from
-- before there were services only the version that declared last is heard.
local function is_there(source)
  if source == LEGACY then return recent(redis.call('HGET', K.meta, 'heard')) end
  return recent(redis.call('HGET', K.sources, 'seen:' .. service_of(source)))
end

-- A service that has lost a schedule declares anew when it comes back, and learns of it then.
local function declares_anew(source)
  local service = service_of(source)
  if service then redis.call('HDEL', K.sources, 'digest:' .. service) end
end
