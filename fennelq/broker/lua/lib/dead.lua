-- Writes a dead job: its DLQ entry, its record, its result. The entry has only the beginning of the error message, because
-- lists of dead jobs show no more; the record has all of it. `tries` is the number of tries for the record, or nil to keep
-- what it has. It is written after the entry: an error in a failure that cannot be read must not change the number.
-- `fingerprint` is nil when no worker has made one.
--@include keys, job_ended, groups, cut
local function write_dead(record, job, place, failure, type, message, why, ttl, tries, fingerprint)
  local task = redis.call('HGET', record, F.task) or ''
  local group, sample = group_of(fingerprint, why, task, type), cut(message, 200)
  local entry = redis.call('XADD', K.dead, '*', 'i', job, 't', task, 'e', type, 'm', sample, 'y', why, 'f', group)
  began_group = join_group(entry, group, task, type, sample, why)
  if tries then redis.call('HSET', record, F.tries, tries) end
  redis.call('HSET', record, F.status, 'D', F.ended, stamp, F.failure, failure, F.reason, why, F.place, 'dlq/' .. entry, F.settled_by, place)
  local envelope = '{"dead":' .. failure .. '}'
  write_result(job, envelope, ttl)
  job_ended(record, job, 'D', envelope)
end
