-- promote: moves due jobs from the sorted sets to their lanes.
--
-- The new place is written before the old one is removed: a script that fails half-way leaves a job in two places,
-- never in no place, and the record names the valid place. A member whose job is at another place is dropped and
-- counted. One call moves at most `limit` jobs per set, so that a million jobs due at once do not block the server.
--
-- It also opens the gates of limits whose alarm is due. If the alarms cannot be read, this is an error, after all jobs that
-- are due have been moved.
--
-- A scheduled job gets a field with its due time: how long it waits for its first start counts from then.
--
-- Returns {promoted or let in by a gate, ms to the next due time or -1}.
--
--@args prefix, limit
--@include early/nothing_due, now, keys, fields, next_due, arrive
--@flags allow-oom

local promoted, dropped = 0, 0

local function move(set, name)
  local due = redis.call('ZRANGEBYSCORE', set, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #due, 2 do
    local job = due[i]
    local record = record_of(job)
    local f = load(record)
    if f and f[F.place] == name then
      if not f[F.run] and not f[F.due] then redis.call('HSET', record, F.due, due[i + 1]) end
      arrive(record, job, f[F.lane] or NORMAL, f[F.gates])
      promoted = promoted + 1
    else
      dropped = dropped + 1
    end
    redis.call('ZREM', set, job)
  end
end

local function open_gates()
  local before = calls
  for _, gate in ipairs(redis.call('ZRANGEBYSCORE', K.alarms, '-inf', now, 'LIMIT', 0, limit)) do
    redis.call('ZREM', K.alarms, gate)
    lines().open(gate)
  end
  promoted = promoted + calls - before
end

move(K.scheduled, 'sched')
move(K.retries, 'retry')
if dropped > 0 then redis.pcall('HINCRBY', K.counters, 'dropped', dropped) end
local ok, problem = pcall(open_gates)
wake_sleepers()
if not ok then
  local text = type(problem) == 'table' and problem.err or problem
  return redis.error_reply(text .. ' (' .. K.alarms .. ')')
end
return {promoted, next_due()}
