-- open: makes every lane of a queue and its group, so that a blocking read over all of them finds them.
--
-- Groups begin at 0: jobs that were sent before the first worker ever came are delivered.
--
-- Answers how many groups were new.
--
--@args prefix
--@flags allow-oom

local made = 0
for _, lane in ipairs(LANES) do
  local reply = redis.pcall('XGROUP', 'CREATE', K[lane], GROUP, '0', 'MKSTREAM')
  if reply.err == nil then made = made + 1 end
  if reply.err and string.sub(reply.err, 1, 9) ~= 'BUSYGROUP' then return reply end
end
return made
