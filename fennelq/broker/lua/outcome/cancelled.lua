-- Settles a job that was cancelled or has expired. Arguments: `ttl`, the ms to keep the result; `envelope`, the result:
-- {"cancelled": why}, as JSON.
--@include job_ended
function settle.K(record, job, place, _, ttl, envelope)
  redis.call('HSET', record, F.status, 'K', F.ended, stamp, F.reason, cjson.decode(envelope).cancelled, F.place, place)
  write_result(job, envelope, ttl)
  job_ended(record, job, 'K', envelope, ttl)
end
