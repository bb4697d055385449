-- Removes an executor from every set from which a script takes executors to wake.
--@include sleepers
local function stay_awake(executor)
  redis.pcall('SREM', K.sleepers, executor)
  redis.pcall('SREM', K.halted, executor)
  for _, lane in ipairs(PRIORITIES) do redis.pcall('SREM', sleepers_of(lane), executor) end
end
