-- Cancelled: the envelope {"cancelled": why}, and how long to keep it.
--@include settle
function settle.K(record, job, place, _, ttl, envelope)
  redis.call('HSET', record, F.status, 'K', F.ended, stamp, F.reason, cjson.decode(envelope).cancelled, F.place, place)
  write_result(job, envelope, ttl)
  job_ended(record, job, 'K', envelope, ttl)
end
