-- Wakes one of the executors that sleep.
--@include sleepers, bell
-- Takes names out of a set until one of them has received the message; false when none has. A caller that may not publish
-- wakes none, and gets nil: the executors find the job when they look.
local function wake_one(sleepers, message)
  for _ = 1, TRIES do
    local executor = redis.pcall('SPOP', sleepers)
    if type(executor) ~= 'string' then return false end
    local heard = tell(executor, message)
    if heard == nil then redis.pcall('SADD', sleepers, executor) end
    if heard ~= false then return heard end
  end
  return false
end

-- Wakes an executor that reads this lane. The executor in quarantine looks from time to time and never sleeps, so no
-- executor is woken for its lane.
local function ring(lane)
  if lane == QUARANTINE then return false end
  local message = 'look ' .. lane
  return wake_one(K.sleepers, message) or wake_one(sleepers_of(lane), message)
end
