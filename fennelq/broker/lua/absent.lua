-- absent: deletes the facts about executors that have ended, so that no executor counts them any more. If one of them was
-- the watcher, the next executor that is present takes its place.
--
-- Returns how many were known.
--
--@args prefix
--@each executor
--@flags allow-oom

local known = 0
for i = first, #ARGV do
  known = known + redis.call('HDEL', K.executors, ARGV[i])
  redis.call('ZREM', K.alive, ARGV[i])
  if redis.call('GET', K.watcher) == ARGV[i] then redis.call('DEL', K.watcher) end
end
return known
