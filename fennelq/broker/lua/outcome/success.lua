-- Settles a run that succeeded. Arguments: `kind`, S or N (success without a result); `ttl`, the ms to keep the result;
-- `envelope`, the result, as JSON. The arguments of the job are not needed any more and are emptied, to save memory.
-- `place` keeps the token that settled: a finish that is repeated compares it.
--@include settle
function settle.S(record, job, _, kind, ttl, envelope)
  -- Only a record that is not marked gains a field: see `job_ended`.
  local plain = redis.call('HSET', record, F.status, kind, F.ended, stamp, F.arguments, '') == 1
  write_result(job, envelope, ttl)
  if plain and ONLY_MARKED then
    redis.call('PEXPIRE', record, keep_for(ttl))
  else
    job_ended(record, job, kind, envelope, ttl)
  end
end
settle.N = settle.S
