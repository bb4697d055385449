-- What people have paused in this queue: the first line of the key has `c` when executors start no jobs, and `e` when
-- callers create none. The other lines are for people: who, when, why. A key of a wrong type ends the script with an error
-- that names the key, before the script has written anything.
local paused = redis.pcall('GET', K.paused)
if type(paused) == 'table' then return redis.error_reply(paused.err .. ': ' .. K.paused .. ' should be a string; rename or delete it') end
