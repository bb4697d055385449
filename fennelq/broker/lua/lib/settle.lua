-- Settles jobs. The caller has taken the job out of its place, or won the XACK that lets it. How each outcome is written is
-- in `lua/outcome`, one file each: every script that ends jobs uses the same files, so an outcome looks the same whichever
-- script wrote it.
--
-- There is no rollback, and a job that has left its place must not get lost. So the one key that any end may need is
-- checked before anything is written.
--@include keys, counts, lane, dead
local kind = redis.call('TYPE', K.dead).ok
if kind ~= 'stream' and kind ~= 'none' then
  return redis.error_reply('WRONGTYPE ' .. K.dead .. ' is a ' .. kind .. ' and should be a stream: rename or delete it')
end

local settle = {}

-- What cannot be settled as asked (a record of a wrong type, an outcome that cannot be read) is dead as `broken`: its
-- entry is already acknowledged, so an error here would lose it. What the failed settling had written is undone first.
local function bury(record, job, place, problem)
  local text = type(problem) == 'table' and problem.err or tostring(problem)
  local failure = cjson.encode({type = 'Broken', message = string.sub(text, 1, 500), traceback = '', reason = 'broken', tries = 0})
  if redis.call('TYPE', record).ok ~= 'hash' then redis.call('DEL', record, result_of(job)) end
  local home, half = split(redis.call('HGET', record, F.place))
  if home == 'dlq' then redis.call('XDEL', K.dead, half) end
  redis.pcall('ZREM', K.retries, job)
  redis.pcall('ZREM', K.scheduled, job)
  keep_lane(record, (split(place)))
  redis.call('PERSIST', record)
  redis.call('DEL', result_of(job))
  write_dead(record, job, place, failure, 'Broken', text, 'broken', failure_ttl)
end

-- Settles one job in a pcall of its own, so that a job that fails takes no other with it. The outcome that was written may
-- differ from the one that was asked for: too old for too long is dead.
local function settle_job(job, place, kind, number, value)
  local record = record_of(job)
  local done, came_to = pcall(settle[kind], record, job, place, kind, number, value)
  if done then
    count(came_to or kind)
  else
    bury(record, job, place, came_to)
    count('D')
    count('broken')
  end
end
