-- schedule: changes a schedule at run time, for the API and the command line, and wakes the executors.
--
-- `verb` is one of: `put` (add the schedule, or replace its definition by `value`), `pause`, `resume` (the next tick is
-- `next_due`; ticks during the pause do not run), `remove`, `run` (record a run that was sent by hand; `value` is its
-- job, for which `overlap` then waits, or '').
--
-- Schedules that the code declares can be paused and run. Only the code changes or removes them, with one exception:
-- such a schedule can be removed when no worker of its service has called `look` for `patience`. If the service starts
-- again and still declares the schedule, it is added again.
--
-- Returns 1 done · 0 unknown schedule · -1 only the code may do this.
--
--@args prefix, verb, name, value, next_due, patience
--@include now, schedules
--@flags allow-oom

local state = state_of(name)
local source = redis.call('HGET', state, 'source')

local function change()
  if is_of_code(source) and (verb == 'put' or verb == 'remove' and is_active(source)) then return -1 end
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
if answer == 1 then announce_schedules() end
return answer
