-- Lets time pass for an app under test: moves its clock, and brings all its keys nearer to their end.
--
-- It also notes that an executor has looked for due schedules until then: otherwise every tick in between would count as
-- missed.
local clock, looks, pattern, ms = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
local moved = redis.call('INCRBY', clock, ms)
local cursor = '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    local left = redis.call('PTTL', key)
    if left >= 0 then redis.call('PEXPIRE', key, left - ms) end
  end
until cursor == '0'
if redis.call('EXISTS', looks) == 1 then
  local now = redis.call('TIME')
  now = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) + moved)
  redis.call('HSET', looks, 'seen', now, 'back', now)
end
return moved
