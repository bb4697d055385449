-- The server's clock, read once: due times, expiry and stamps of one script agree, and no client clock decides.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- Redis formats a Lua number anew for every call it is passed to; a text is copied.
local stamp = string.format('%.0f', now)
