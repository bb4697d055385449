-- Settles a run that succeeded. Arguments: `kind`, S or N (success without a result); `ttl`, the ms to keep the result;
-- `envelope`, the result, as JSON. The arguments of the job are not needed any more and are emptied, to save memory, unless a
-- recorder of the history reads them first.
-- `place` keeps the token that settled: a finish that is repeated compares it.
--@include result, settle, ends
function settle.S(record, job, _, kind, ttl, envelope)
  if recorded_in == nil then
    local name = prefix .. N.ends
    recorded_in = redis.call('EXISTS', name) == 1 and name
  end
  -- Only a record that is not marked gains a field: see `job_ended`.
  local plain
  if recorded_in then
    plain = redis.call('HSET', record, F.status, kind, F.ended, stamp) == 1
    if ended then
      others_ended = others_ended or {}
      others_ended[#others_ended + 1] = ' ' .. kind .. job
    else
      ended = stamp .. ' ' .. kind .. job
    end
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
