-- The clock of an app under test: the server's clock, moved by an offset that its namespace has. It replaces
-- `lib/now.lua` in the scripts of `fennelq.testing`, and in no others.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
now = now + (tonumber(redis.call('GET', string.match(KEYS[1], '^[^{]*{[^/}]+') .. '}:clock')) or 0)
local stamp = string.format('%.0f', now)
