-- unqueue: starts the next of the runs that queue behind an unfinished one. When several executors try, exactly one
-- gets 1.
--
-- A claim succeeds if the schedule, its last job and its queued runs have not changed since the executor read them.
--
-- Returns 1 claimed · 0 another executor was first, or the schedule has changed.
--
--@args prefix, name, definition, seen_job, seen_queued, rest, last_run, id, job, last_error, last_error_at
--@include now, cron, outbox
--@flags allow-oom

local state = state_of(name)
local known = redis.call('HMGET', state, 'definition', 'last_job', 'paused')
if known[1] ~= definition or (known[2] or '') ~= seen_job or known[3] == '1' then return 0 end
if redis.call('HGET', K.queued, name) ~= seen_queued then return 0 end

if rest == '' then
  redis.call('HDEL', K.queued, name)
else
  redis.call('HSET', K.queued, name, rest)
end
hand_over(id, job)
redis.call('HSET', state, 'last_job', id, 'last_run', last_run)
redis.call('HINCRBY', state, 'runs', 1)
note_error(state, seen_job, last_error, last_error_at)
return 1
