-- promote: moves due jobs from the sorted sets to their lanes.
--
-- The new place is written before the old one is removed: a script that fails half-way leaves a job in two places,
-- never in no place, and the record names the valid place. A member whose job is at another place is dropped and
-- counted. One call moves at most `limit` jobs per set, so that a million jobs due at once do not block the server.
--
-- Returns {promoted, ms to the next due time or -1}.
--
--@args prefix, limit
--@include early/nothing_due, now, keys, fields, ready
--@flags allow-oom

local promoted, dropped = 0, 0

local function move(set, name)
  for _, job in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', now, 'LIMIT', 0, limit)) do
    local record = record_of(job)
    local f = load(record)
    if f and f[F.place] == name then
      ready(record, job, f[F.lane] or NORMAL, 1)
      promoted = promoted + 1
    else
      dropped = dropped + 1
    end
    redis.call('ZREM', set, job)
  end
end

move(K.scheduled, 'sched')
move(K.retries, 'retry')
if dropped > 0 then redis.pcall('HINCRBY', K.counters, 'dropped', dropped) end
wake_sleepers()
return {promoted, (next_due())}
