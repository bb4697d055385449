-- Settles jobs. The caller has removed the job from its place, or its XACK has counted the entry. Each outcome has a
-- file in `lua/outcome` that writes it, for all scripts: so an outcome looks the same whichever script wrote it.
--
-- A script has no rollback, and a job that was removed from its place must not get lost. Every outcome may end in the
-- DLQ, so the type of that key is checked before anything is written.
--@include keys, counts, lane, dead
local kind = redis.call('TYPE', K.dead).ok
if kind ~= 'stream' and kind ~= 'none' then
  return redis.error_reply('WRONGTYPE ' .. K.dead .. ' is a ' .. kind .. ' and should be a stream: rename or delete it')
end

local settle = {}

-- The outcomes that stay what they are when the job was asked to stop.
local COMPLETE = {S = true, N = true, K = true}

-- A job that cannot be settled with its outcome (a record of a wrong type, an outcome that cannot be read) becomes
-- dead, with the reason `broken`: its entry is already acknowledged, so an error here would lose the job. First, this
-- undoes the writes of the failed settling.
local function bury(record, job, place, problem)
  local text = type(problem) == 'table' and problem.err or tostring(problem)
  if redis.call('TYPE', record).ok ~= 'hash' then redis.call('DEL', record, result_of(job)) end
  local tries = tonumber(redis.call('HGET', record, F.tries)) or 0
  local failure = cjson.encode({type = 'Broken', message = string.sub(text, 1, 500), traceback = '', reason = 'broken', tries = tries})
  local home, half = split(redis.call('HGET', record, F.place))
  if home == 'dlq' then redis.call('XDEL', K.dead, half) end
  redis.pcall('ZREM', K.retries, job)
  redis.pcall('ZREM', K.scheduled, job)
  keep_lane(record, (split(place)))
  redis.call('PERSIST', record)
  redis.call('DEL', result_of(job))
  write_dead(record, job, place, failure, 'Broken', text, 'broken', failure_ttl)
end

-- The outcome of a job that was asked to stop and did not succeed: it is cancelled, whatever its handler made of the
-- request. A success stands, because the work is done. `number` is the ttl of a failure only if the job is dead.
local function unless_stopping(record, kind, number, value)
  local why = redis.pcall('HGET', record, F.stopping)
  if type(why) ~= 'string' then return kind, number, value end
  return 'K', kind == 'D' and number or failure_ttl, cjson.encode({cancelled = why})
end

-- Settles one job in a pcall of its own, so that one job's error does not end the whole batch. An outcome returns its
-- kind when it has written another one: a job that has been too new for every worker for too long is dead.
local function settle_job(job, place, kind, number, value)
  local record = record_of(job)
  if not COMPLETE[kind] then kind, number, value = unless_stopping(record, kind, number, value) end
  local ok, returned = pcall(settle[kind], record, job, place, kind, number, value)
  if ok then
    count(returned or kind)
  else
    bury(record, job, place, returned)
    count('D')
    count('broken')
  end
end
