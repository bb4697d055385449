-- look: which schedules are due, by the server's clock.
--
-- Answers {now, when anybody last looked, ms to the next due time or -1, hand-overs waiting, schedules whose runs queue,
-- then per due schedule: name, definition, next, last job, whether that is still on its way}. That somebody looks at all tells late ticks, which simply
-- run, from those that were missed because nothing ran.
--
--@keys cron:due, cron:meta, out, cron:queued
--@args prefix, limit
--@include now
--@flags allow-oom

local seen = tonumber(redis.call('HGET', cron_meta, 'seen') or stamp)
redis.call('HSET', cron_meta, 'seen', stamp)

local due = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', cron_due, '-inf', now, 'LIMIT', 0, limit)) do
  local state = redis.call('HMGET', prefix .. 'cron:s:' .. name, 'definition', 'next', 'last_job')
  if state[1] then
    local job = state[3] or ''
    due[#due + 1] = {name, state[1], state[2], job, redis.call('HEXISTS', out, job)}
  else
    redis.call('ZREM', cron_due, name)
  end
end

local head, wait = redis.call('ZRANGEBYSCORE', cron_due, '(' .. stamp, '+inf', 'WITHSCORES', 'LIMIT', 0, 1), -1
if head[2] then wait = head[2] - now end
return {now, seen, wait, redis.call('HLEN', out), redis.call('HLEN', cron_queued), due}
