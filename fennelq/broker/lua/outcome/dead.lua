-- Settles a job that is dead. Arguments: `ttl`, the ms to keep the result, which contains the failure; `failure`, as
-- JSON. The record gets no TTL: it must live as long as its DLQ entry, and `gc` and `forget` delete both together.
--@include lane, dead
function settle.D(record, job, place, _, ttl, failure)
  keep_lane(record, (split(place)))
  local parsed = cjson.decode(failure)
  local tries = tonumber(parsed.tries) or 0
  write_dead(record, job, place, failure, parsed.type, parsed.message, parsed.reason or 'failed', ttl, tries, parsed.f)
  return 'D'
end
