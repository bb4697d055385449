-- Settles a run that failed and is tried again. Arguments: `wait`, the ms before the next try; `failure`, as JSON.
--@include lane, later, run_over
function settle.R(record, job, place, _, wait, failure)
  local problem = cjson.decode(failure).type
  keep_lane(record, (split(place)))
  later(K.retries, job, now + wait)
  redis.call('HINCRBY', record, F.tries, 1)
  redis.call('HSET', record, F.status, 'R', F.failure, failure, F.place, 'retry', F.settled_by, place)
  run_over('later', record, job, 'failed', problem)
end
