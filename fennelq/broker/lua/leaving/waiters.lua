-- waiters: publishes the end to the processes that wait for it. A waiter that misses the message looks again after a few
-- seconds, so an error of PUBLISH (an ACL without channels) is ignored, and the message still goes to the other channels.
-- A process that follows the progress waits for the end as well, so the fields of both end here.
--@when ended: watchers
local message = queue .. ':' .. job .. '\n' .. more
for channel in string.gmatch(watchers, '%S+') do redis.pcall('PUBLISH', channel, message) end
redis.call('HDEL', record, F.watchers, F.followers)
