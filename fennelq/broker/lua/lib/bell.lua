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
  if type(heard) == 'number' then return heard > 0 end
end
