-- The server's clock, read once per script, so that its due times, expiries and stamps agree. The clocks of clients may be
-- wrong and decide nothing.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- As a string: Redis formats a Lua number anew for every command that it is passed to.
local stamp = string.format('%.0f', now)
