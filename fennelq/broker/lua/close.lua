-- close: an executor says good-bye: its consumers go, if nothing is pending on them.
--
-- Answers in how many lanes none of that name is left.
--
--@keys s, s:high, s:low, iso
--@args prefix, consumer
--@include keys
--@flags allow-oom

local removed = 0
for i = 1, #KEYS do
  local pending = redis.pcall('XPENDING', KEYS[i], GROUP, '-', '+', 1, consumer)
  if not pending.err and #pending == 0 then
    redis.pcall('XGROUP', 'DELCONSUMER', KEYS[i], GROUP, consumer)
    removed = removed + 1
  end
end
return removed
