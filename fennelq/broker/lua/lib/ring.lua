-- Wakes an executor when a lane has a new entry. A script that adds entries or due times calls `wake_sleepers` at its end,
-- which the loader checks: otherwise the jobs would wait until an executor looks by itself.
--
-- One message per lane is enough. The executor that it wakes takes as many jobs as it has slots, and wakes the next one if
-- it leaves some. So a single job wakes one executor, and a burst as many as it needs.
--@include bell
local added, soonest = {}, nil

-- Takes names out of a set until one of them has received the message; false when none has.
local function wake_one(sleepers, message)
  for _ = 1, TRIES do
    local executor = redis.pcall('SPOP', sleepers)
    if type(executor) ~= 'string' then return false end
    if tell(executor, message) then return true end
  end
  return false
end

-- Wakes an executor that reads this lane.
local function ring(lane)
  local message = 'look ' .. lane
  return wake_one(K.sleepers, message) or wake_one(sleepers_of(lane), message)
end

-- Tells one sleeping executor when the next job is due. It sleeps on, so its name stays in the set. Executors that are busy
-- learn the time from their next fetch.
local function announce_due()
  for _ = 1, TRIES do
    local executor = redis.pcall('SRANDMEMBER', K.sleepers)
    if type(executor) ~= 'string' or tell(executor, 'due ' .. math.max(0, soonest - now)) then return end
    redis.call('SREM', K.sleepers, executor)
  end
end

local function wake_sleepers()
  for lane in pairs(added) do ring(lane) end
  if soonest then announce_due() end
end
