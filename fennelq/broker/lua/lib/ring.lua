-- Wakes an executor when a lane has a new entry. A script that adds entries or due times calls `wake_sleepers` at its end,
-- which the loader checks: otherwise the jobs would wait until an executor looks by itself.
--
-- One message per lane is enough. The executor that it wakes takes as many jobs as it has slots, and wakes the next one if
-- it leaves some. So a single job wakes one executor, and a burst as many as it needs.
--@include bell
local added, soonest = {}, nil

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

-- Executors that are busy learn from their next fetch when the next job is due.
local function wake_sleepers()
  for lane in pairs(added) do ring(lane) end
  if soonest then tell_one('due ' .. math.max(0, soonest - now)) end
end
