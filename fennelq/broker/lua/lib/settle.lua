-- Writes down how a job ended or goes on. The caller has taken the job out of its place, or won the XACK that lets it.
-- One fragment serves finish, fetch (expired), cancel, purge and recover, so an outcome looks the same whoever wrote it.
--
-- Nothing may fail once a job has left its place, so the key that any end may need is looked at before.
local kind = redis.call('TYPE', K.dead).ok
if kind ~= 'stream' and kind ~= 'none' then
  return redis.error_reply('WRONGTYPE ' .. K.dead .. ' is a ' .. kind .. ' and should be a stream: rename or delete it')
end

local counts = {}

local function count(what, n) counts[what] = (counts[what] or 0) + (n or 1) end

-- A counter is not worth failing for, here as in every script.
local function write_counts()
  for what, n in pairs(counts) do redis.pcall('HINCRBY', K.counters, what, n) end
end

-- The record stays at least as long as its result, long enough for a late retry of delay() to find it, and, when it was
-- handed over from another slot, long enough for a hand-over that is repeated.
local record_ms = tonumber(record_ttl)
local function keep_for(ttl, least)
  local keep = tonumber(ttl) > record_ms and ttl or record_ttl
  return least and tonumber(least) > tonumber(keep) and least or keep
end

-- Not to be told costs a waiter a few seconds, so nothing that goes wrong here may fail the settling.
local function wake(record, job, watchers, envelope)
  for channel in string.gmatch(watchers, '%S+') do redis.pcall('PUBLISH', channel, queue .. ':' .. job .. '\n' .. envelope) end
  redis.call('HDEL', record, F.watchers)
end

local function publish_result(record, job, envelope, ttl, watchers)
  if ttl ~= '0' and envelope ~= '' then
    local result = result_of(job)
    redis.call('RPUSH', result, envelope)
    redis.call('PEXPIRE', result, ttl)
  end
  if watchers then wake(record, job, watchers, envelope) end
end

-- An idempotency key without a window of its own is held exactly as long as the record lives.
local function end_of_record(record, job, idem, history, ttl)
  redis.call('PEXPIRE', record, ttl)
  if history then redis.call('PEXPIRE', history_of(job), ttl) end
  if idem and string.sub(idem, 1, 1) == '=' then
    local name = string.sub(idem, 2)
    if named_by(name) == job then redis.call('PEXPIRE', idem_of(name), ttl) end
  end
end

local settle = {}

-- Success: the result, and how long it is kept. The arguments have served; `p` goes on naming the token that settled.
function settle.S(record, job, _, kind, ttl, envelope)
  -- `z` is new unless the record was `marked`: most jobs have nobody waiting, no key, no history.
  local plain = redis.call('HSET', record, F.status, kind, F.ended, stamp, F.arguments, '') == 1
  local known = plain and {} or redis.call('HMGET', record, F.watchers, F.idempotency, F.history, F.kept_at_least)
  publish_result(record, job, envelope, ttl, known[1])
  end_of_record(record, job, known[2], known[3], keep_for(ttl, known[4]))
end
settle.N = settle.S

-- Cancelled: {"cancelled": why}, and how long that is kept.
function settle.K(record, job, place, _, ttl, envelope)
  local known = redis.call('HMGET', record, F.watchers, F.idempotency, F.history, F.kept_at_least)
  redis.call('HSET', record, F.status, 'K', F.ended, stamp, F.reason, cjson.decode(envelope).cancelled, F.place, place)
  publish_result(record, job, envelope, ttl, known[1])
  end_of_record(record, job, known[2], known[3], keep_for(ttl, known[4]))
end

-- Dead: the failure, and how long the result that tells of it is kept. The record lives exactly as long as its DLQ
-- entry: no TTL here, `gc` and `purge` end both together.
function settle.D(record, job, place, _, ttl, failure)
  keep_lane(record, (split(place)))
  local known = redis.call('HMGET', record, F.watchers, F.task)
  local told = cjson.decode(failure)
  local why = told.reason or 'failed'
  local entry = redis.call('XADD', K.dead, '*', 'i', job, 't', known[2] or '', 'e', told.type, 'm', string.sub(told.message, 1, 200), 'y', why)
  redis.call('HSET', record, F.status, 'D', F.ended, stamp, F.failure, failure, F.reason, why, F.tries, tonumber(told.tries) or 0, F.place, 'dlq/' .. entry, F.settled_by, place)
  publish_result(record, job, '{"dead":' .. failure .. '}', ttl, known[1])
  return 'D'
end

-- Retry: the failure, and how long to wait.
function settle.R(record, job, place, _, wait, failure)
  keep_lane(record, (split(place)))
  remember(record, job, 'failed', cjson.decode(failure).type)
  later(K.retries, job, now + wait)
  redis.call('HINCRBY', record, F.tries, 1)
  redis.call('HSET', record, F.status, 'R', F.failure, failure, F.place, 'retry', F.settled_by, place)
end

-- Snoozed: until when.
function settle.Z(record, job, place, _, due)
  keep_lane(record, (split(place)))
  later(K.scheduled, job, due_at(due))
  redis.call('HSET', record, F.status, 'L', F.place, 'sched', F.settled_by, place)
end

-- The worker's code is too old for the job: it has no such task, or no such parameter, or cannot read the record. During a
-- deploy another worker can run it, so the job comes back a little later, and is dead when no worker could run it for
-- `patience`. It spends neither a try nor a delivery. `Y` says why, and after how many starts: one start more, and it is
-- out of date.
function settle.U(record, job, place, _, ttl, failure)
  local told = cjson.decode(failure)
  if redis.call('HSETNX', record, F.too_old_since, stamp) == 1 then remember(record, job, told.reason, told.message) end
  local known = redis.call('HMGET', record, F.status, F.run, F.too_old_since)
  -- This start began nothing, so `expires` still counts. Without a start (an unknown wire version) the status is not X.
  if known[1] == 'X' then redis.call('HINCRBY', record, F.blank_starts, 1) end
  local since = now - known[3]
  if since >= tonumber(patience) then return settle.D(record, job, place, 'D', ttl, failure) end
  keep_lane(record, (split(place)))
  later(K.scheduled, job, now + math.min(30000, math.max(500, since)))
  local why = select(3, run_of(known[2])) .. ' ' .. told.message
  redis.call('HSET', record, F.status, 'L', F.place, 'sched', F.settled_by, place, F.too_old_because, why)
end

-- What cannot be settled as asked (a record of a wrong type, an outcome that cannot be read) is dead as `broken`:
-- its entry is already acknowledged, so an error here would lose it. Whatever the failed settling had written is undone.
local function bury(record, job, place, problem)
  local text = type(problem) == 'table' and problem.err or tostring(problem)
  local failure = cjson.encode({type = 'Broken', message = string.sub(text, 1, 500), traceback = '', reason = 'broken', tries = 0})
  if redis.call('TYPE', record).ok ~= 'hash' then redis.call('DEL', record, result_of(job)) end
  local known = redis.call('HMGET', record, F.watchers, F.task, F.place)
  local home, half = split(known[3])
  if home == 'dlq' then redis.call('XDEL', K.dead, half) end
  redis.pcall('ZREM', K.retries, job)
  redis.pcall('ZREM', K.scheduled, job)
  local entry = redis.call('XADD', K.dead, '*', 'i', job, 't', known[2] or '', 'e', 'Broken', 'm', string.sub(text, 1, 200), 'y', 'broken')
  redis.call('HSET', record, F.status, 'D', F.ended, stamp, F.failure, failure, F.reason, 'broken', F.place, 'dlq/' .. entry, F.settled_by, place)
  keep_lane(record, (split(place)))
  redis.call('PERSIST', record)
  redis.call('DEL', result_of(job))
  publish_result(record, job, '{"dead":' .. failure .. '}', failure_ttl, known[1])
end

-- Settles one job in its own pcall, so that one that fails takes no other with it. What it came to may be another kind.
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
