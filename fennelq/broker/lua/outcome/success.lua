-- Settles a run that succeeded. Arguments: `kind`, S or N (success without a result); `ttl`, the ms to keep the result;
-- `envelope`, the result, as JSON. The arguments of the job are not needed any more and are emptied, to save memory, unless a
-- recorder of the history reads them first. `place` keeps the token that settled: a finish that is repeated compares it.
--
-- Most runs succeed, and nothing else happens at their end. So this file includes nothing that other ends need, and the script
-- that includes it says how a marked job ends (`end_marked`): see `job_ended`.
--@include result, ends
local end_marked

local function succeed(record, job, _, kind, ttl, envelope)
  if recorded_in == nil then
    local name = prefix .. N.ends
    recorded_in = redis.call('EXISTS', name) == 1 and name
  end
  -- Only a record that is not marked gains a field.
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
    end_marked(record, job, kind, envelope, ttl)
  end
end
