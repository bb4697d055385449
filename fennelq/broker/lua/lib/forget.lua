-- Deletes a dead job; returns 1 when the DLQ entry existed. The record is deleted only if it names this entry: after a
-- replay the job may be somewhere else, or dead again with another entry.
--@include keys, idempotency, leave_group
local function forget(entry)
  local found = redis.call('XRANGE', K.dead, entry, entry)[1]
  if not found or redis.call('XDEL', K.dead, entry) ~= 1 then return 0 end
  leave_group(found)
  local job = found[2][2]
  local known = redis.pcall('HMGET', record_of(job), F.place, F.idempotency)
  if known.err or known[1] ~= 'dlq/' .. entry then return 1 end
  local name = string.match(known[2] or '', '^.(.+)$')
  if name and named_by(name) == job then redis.call('DEL', idem_of(name)) end
  redis.call('DEL', record_of(job), result_of(job), history_of(job))
  return 1
end
