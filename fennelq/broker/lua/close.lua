-- close: an executor says good-bye: its consumers go, if nothing is pending on them.
--
-- Answers in how many lanes none of that name is left.
--
--@args prefix, consumer
--@flags allow-oom

local removed = 0
for _, lane in ipairs(LANES) do
  local pending = redis.pcall('XPENDING', K[lane], GROUP, '-', '+', 1, consumer)
  if not pending.err and #pending == 0 then
    redis.pcall('XGROUP', 'DELCONSUMER', K[lane], GROUP, consumer)
    removed = removed + 1
  end
end
return removed
