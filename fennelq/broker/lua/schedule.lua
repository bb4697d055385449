-- schedule: what people do to a schedule at run time. Executors are told at once.
--
-- put: add it or change it to `value`. pause, resume: a resumed one goes on with the time given, what it missed is
-- missed. remove: forget it. run: the job `value` of it was sent by hand; it is the one to wait for unless `value` is ''.
-- Schedules that the code declares can be paused and run, but only the code changes or removes them; one can be removed
-- once no worker of its service has looked for `patience`. It comes back if the service does, and still declares it.
--
-- Answers 1 done · 0 no such schedule · -1 it is the code's.
--
--@args prefix, verb, name, value, next_due, patience
--@include now, schedules
--@flags allow-oom

local state = state_of(name)
local source = redis.call('HGET', state, 'source')

local function change()
  if is_of_code(source) and (verb == 'put' or verb == 'remove' and is_there(source)) then return -1 end
  if verb == 'put' then
    put(name, value, next_due, 'runtime')
  elseif not source then
    return 0
  elseif verb == 'pause' then
    redis.call('HSET', state, 'paused', '1')
    redis.call('ZREM', K.due, name)
  elseif verb == 'resume' then
    if redis.call('HDEL', state, 'paused') == 1 then set_next(name, next_due) end
  elseif verb == 'remove' then
    declares_anew(source)
    remove(name)
  else
    redis.call('HSET', state, 'last_run', stamp)
    redis.call('HINCRBY', state, 'runs', 1)
    if value ~= '' then redis.call('HSET', state, 'last_job', value) end
  end
  return 1
end

local answer = change()
if answer == 1 then tell() end
return answer
