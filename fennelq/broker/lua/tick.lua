-- tick: claims the due ticks of a schedule. When several executors try, exactly one gets 1.
--
-- A claim succeeds if the schedule has not changed since the executor read it, and moves `next` in the same step. So a
-- tick runs once without a leader, even after the records of its jobs have expired, and only the server's clock
-- matters. The script writes the jobs to the outbox in this step as well. A courier enqueues them in the slot of their
-- queue, under fixed ids, and then removes them from the outbox. Every step may be repeated.
--
-- Returns 1 claimed · 0 another executor was first, or the schedule has changed.
--
--@args prefix, name, definition, seen_next, seen_job, seen_queued, next_due, last_run, skipped, queued, last_error, last_error_at
--@each id, job
--@include now, cron, outbox
--@flags allow-oom

local state = state_of(name)
local known = redis.call('HMGET', state, 'definition', 'next', 'last_job', 'paused')
if known[1] ~= definition or known[2] ~= seen_next or (known[3] or '') ~= seen_job or known[4] == '1' then return 0 end
if (redis.call('HGET', K.queued, name) or '') ~= seen_queued then return 0 end

set_next(name, next_due)
for i = first, #ARGV, stride do
  hand_over(ARGV[i], ARGV[i + 1])
  redis.call('HSET', state, 'last_job', ARGV[i])
  redis.call('HINCRBY', state, 'runs', 1)
end
if last_run ~= '' then redis.call('HSET', state, 'last_run', last_run) end
if skipped ~= '0' then redis.call('HINCRBY', state, 'skipped', skipped) end
note_error(state, seen_job, last_error, last_error_at)
if queued ~= '' then redis.call('HSET', K.queued, name, queued) end
return 1
