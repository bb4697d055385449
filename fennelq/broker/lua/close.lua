-- close: removes the consumers of an executor that ends, and its name from those that sleep.
--
-- A consumer with pending entries stays: deleting it would drop them from the pending list, and recovery would never
-- find them.
--
-- Returns the number of lanes without a consumer of this name.
--
--@args prefix, consumer
--@include awake
--@flags allow-oom

stay_awake(consumer)
local removed = 0
for _, lane in ipairs(LANES) do
  local pending = redis.pcall('XPENDING', K[lane], GROUP, '-', '+', 1, consumer)
  if not pending.err and #pending == 0 then
    redis.pcall('XGROUP', 'DELCONSUMER', K[lane], GROUP, consumer)
    removed = removed + 1
  end
end
return removed
