-- Messages to executors that sleep. An executor that finds a queue empty adds its name to the set `idle` and sleeps. It then
-- takes jobs only when a message arrives on its bell, a channel of the queue with the executor's name.
--
-- A name without a subscriber belongs to an executor that has ended or lost its connection, so the next one gets the
-- message. After TRIES such names the script stops, to keep its duration bounded: every executor also looks at its queues
-- from time to time.
local TRIES = 100

local function bell_of(executor) return prefix .. 'bell:' .. executor end

-- Sends a message to an executor. Returns whether it has received it, or nil when the caller may not publish (an ACL without
-- channels). Then the executor is told nothing, and must not lose its place among those that sleep.
local function tell(executor, message)
  local heard = redis.pcall('SPUBLISH', bell_of(executor), message)
  if type(heard) ~= 'number' then return nil end
  return heard > 0
end

-- The executors that read only some lanes are in the sets of these lanes, so that no message for another lane ends there.
local function sleepers_of(lane) return K.sleepers .. ':' .. lane end

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

-- Tells one sleeping executor something that is not about new entries of a lane: when the next job is due, or that the
-- outbox has jobs. It sleeps on, so its name stays in the set.
local function tell_one(message)
  if tell_one_of(K.sleepers, message) then return end
  for _, lane in ipairs(PRIORITIES) do
    if tell_one_of(sleepers_of(lane), message) then return end
  end
end

local function stay_awake(executor)
  redis.pcall('SREM', K.sleepers, executor)
  for _, lane in ipairs(PRIORITIES) do redis.pcall('SREM', sleepers_of(lane), executor) end
end
