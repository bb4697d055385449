-- The worker's code is too old for the job: it has no such task, or no such parameter, or cannot read the record. During a
-- deploy another worker can run it, so the job comes back a little later, and is dead when no worker could run it for
-- `patience`. It spends neither a try nor a delivery.
--@include later, history, outcome/dead
function settle.U(record, job, place, _, ttl, failure)
  local parsed = cjson.decode(failure)
  -- One line for the first of these runs: a job that comes back every 30 s would push everything else out of its history.
  if redis.call('HSETNX', record, F.too_old_since, stamp) == 1 then remember(record, job, parsed.reason, parsed.message) end
  local known = redis.call('HMGET', record, F.status, F.run, F.too_old_since)
  -- This start began nothing, so `expires` still counts. Without a start (an unknown wire version) the status is not X.
  if known[1] == 'X' then redis.call('HINCRBY', record, F.blank_starts, 1) end
  local since = now - known[3]
  if since >= tonumber(patience) then return settle.D(record, job, place, 'D', ttl, failure) end
  keep_lane(record, (split(place)))
  later(K.scheduled, job, now + math.min(30000, math.max(500, since)))
  -- After how many starts: one start more, and the reason is out of date, so inspection does not show it.
  local why = select(3, run_of(known[2])) .. ' ' .. parsed.message
  redis.call('HSET', record, F.status, 'L', F.place, 'sched', F.settled_by, place, F.too_old_because, why)
  run_over('later', record, job)
end
