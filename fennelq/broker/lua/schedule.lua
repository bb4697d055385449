-- schedule: what people do to a schedule at run time. Executors are told at once.
--
-- put: add it or change it. pause, resume: a resumed one goes on with the time given, what it missed is missed.
-- remove: forget it. Schedules that the code declares can be paused, but only the code changes or removes them.
--
-- Answers 1 done · 0 no such schedule · -1 it is the code's.
--
--@keys cron:due, cron:names, cron:queued
--@args prefix, verb, name, definition, next_due
--@include now, cron
--@flags allow-oom

local state = state_of(name)
local source = redis.call('HGET', state, 'source')

local function change()
  if verb == 'put' then
    if source == 'code' then return -1 end
    put(name, definition, next_due, 'runtime')
    return 1
  end
  if not source then return 0 end
  if verb == 'pause' then
    redis.call('HSET', state, 'paused', '1')
    redis.call('ZREM', cron_due, name)
  elseif verb == 'resume' then
    redis.call('HDEL', state, 'paused')
    set_next(name, next_due)
  elseif source == 'code' then
    return -1
  else
    remove(name)
    redis.call('HDEL', cron_queued, name)
  end
  return 1
end

local answer = change()
if answer == 1 then redis.call('PUBLISH', prefix .. 'wake', 'cron') end
return answer
