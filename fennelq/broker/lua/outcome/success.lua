-- Settles a run that succeeded. Arguments: `kind`, S or N (success without a result); `ttl`, the ms to keep the result;
-- `envelope`, the result, as JSON. The arguments of the job are not needed any more and are emptied, to save memory, unless a
-- recorder of the history reads them first.
-- `place` keeps the token that settled: a finish that is repeated compares it.
--@include result, settle, ends
function settle.S(record, job, _, kind, ttl, envelope)
  if is_recorded == nil then is_recorded = redis.call('EXISTS', prefix .. N.ends) == 1 end
  -- Only a record that is not marked gains a field: see `job_ended`.
  local plain
  if is_recorded then
    plain = redis.call('HSET', record, F.status, kind, F.ended, stamp) == 1
    ended = ended or {}
    ended[#ended + 1] = ' ' .. kind .. job
  else
    plain = redis.call('HSET', record, F.status, kind, F.ended, stamp, F.arguments, '') == 1
  end
  write_result(job, envelope, ttl)
  if plain and ONLY_MARKED then
    redis.call('PEXPIRE', record, keep_for(ttl))
  else
    ends_made().job_ended(record, job, kind, envelope, ttl)
  end
end
settle.N = settle.S
