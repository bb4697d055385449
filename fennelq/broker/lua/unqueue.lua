-- unqueue: starts the next of the runs that queue behind an unfinished one. Of any number of executors one gets 1.
--
-- The claim is that the queue is still what the claimer saw.
--
-- Answers 1 claimed · 0 somebody else was first.
--
--@keys cron:queued, out
--@args prefix, name, seen_queued, rest, last_run, id, job
--@flags allow-oom

if redis.call('HGET', cron_queued, name) ~= seen_queued then return 0 end
if rest == '' then
  redis.call('HDEL', cron_queued, name)
else
  redis.call('HSET', cron_queued, name, rest)
end
redis.call('HSET', out, id, job)
local state = prefix .. 'cron:s:' .. name
if redis.call('EXISTS', state) == 1 then
  redis.call('HSET', state, 'last_job', id, 'last_run', last_run)
  redis.call('HINCRBY', state, 'runs', 1)
end
return 1
