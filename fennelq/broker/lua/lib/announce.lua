-- Tells one sleeping executor something that is not about new entries of a lane: when the next job is due, or that the
-- outbox has jobs. It sleeps on, so its name stays in the set.
--@include sleepers, bell
local function tell_one_of(sleepers, message)
  for _ = 1, TRIES do
    local executor = redis.pcall('SRANDMEMBER', sleepers)
    if type(executor) ~= 'string' then return false end
    local heard = tell(executor, message)
    if heard ~= false then return true end
    redis.pcall('SREM', sleepers, executor)
  end
  return false
end

local function tell_one(message)
  if tell_one_of(K.sleepers, message) then return end
  for _, lane in ipairs(PRIORITIES) do
    if tell_one_of(sleepers_of(lane), message) then return end
  end
end
