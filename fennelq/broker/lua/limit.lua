-- limit: changes the numbers of a limit at run time, or removes the change (`numbers` is ''). They apply to every gate of
-- the definition, whatever the jobs say. The gates where jobs wait are opened by the promoter, by alarms that are due now:
-- a page of the lines per call. The caller repeats it with the cursor of the reply until that is 0.
--
-- Returns {cursor, gates that got an alarm}.
--
--@args prefix, definition, numbers, cursor, limit
--@include now, wake

if cursor == '0' then
  if numbers == '' then
    redis.call('HDEL', K.limits, definition)
  else
    redis.call('HSET', K.limits, definition, numbers)
  end
end
local page = redis.call('HSCAN', K.lines, cursor, 'COUNT', limit)
local alarms = 0
for i = 2, #page[2], 2 do
  local gate = page[2][i]
  if string.match(gate, '^[^/@]+') == definition then
    alarms = alarms + redis.call('ZADD', K.alarms, now, gate)
    soonest = now
  end
end
wake_sleepers()
return {page[1], alarms}
