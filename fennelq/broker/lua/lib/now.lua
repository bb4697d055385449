-- The server's clock, read once per script, so that its due times, expiries and stamps agree. The clocks of clients may be
-- wrong and decide nothing.
local clock = redis.call('TIME')
-- In ms. As a string too: Redis formats a Lua number anew for every command that it is passed to. It is put together from
-- digits, because Lua needs three times as long to write a number.
local stamp = clock[1] .. string.sub('00000' .. clock[2], -6, -4)
local now = tonumber(stamp)
