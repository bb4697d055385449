-- open: creates every lane of a queue and its group, because a blocking read over several streams fails when the group of
-- one of them is missing.
--
-- Groups begin at 0, so that jobs which were sent before the first worker started are delivered.
--
-- Returns how many groups were new.
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
