-- Settles a run for which the worker's code is too old: it does not have the task or a parameter, or cannot read the
-- record. Arguments: `ttl`, the ms to keep the result if the job is dead; `failure`, as JSON. During a deploy another
-- worker may be able to run the job, so the job is due again a little later. It is dead when no worker could run it for
-- `patience`. This outcome counts neither a try nor a delivery.
--@include run, history, lane, later, run_over, outcome/dead
function settle.U(record, job, place, _, ttl, failure)
  local parsed = cjson.decode(failure)
  -- Write a line for the first of these runs only: a job that returns every 30 s would push all other lines out of its
  -- history.
  if redis.call('HSETNX', record, F.too_old_since, stamp) == 1 then remember(record, job, parsed.reason, parsed.message) end
  local known = redis.call('HMGET', record, F.status, F.run, F.too_old_since)
  -- The handler did not begin, so the job can still expire: see `gates/expired`. With an unknown wire version fetch has
  -- counted no start, and the status is not X.
  if known[1] == 'X' then redis.call('HINCRBY', record, F.blank_starts, 1) end
  local since = now - known[3]
  if since >= tonumber(patience) then return settle.D(record, job, place, 'D', ttl, failure) end
  keep_lane(record, (split(place)))
  later(K.scheduled, job, now + math.min(30000, math.max(500, since)))
  -- The reason is stored with the number of starts. Inspection shows it only while that is the latest start: after a
  -- further one it is out of date.
  local why = select(3, run_of(known[2])) .. ' ' .. parsed.message
  redis.call('HSET', record, F.status, 'L', F.place, 'sched', F.settled_by, place, F.too_old_because, why)
  run_over('later', record, job)
end
