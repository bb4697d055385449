-- restore: puts dead jobs of an export back into the DLQ, with their ids. A job whose id is known is left alone, so a call
-- may be repeated. They die at the time of the call, because entries of a stream are in the order of time.
--
-- The idempotency key of a job is taken if it is free. Otherwise the job has the key in its record only, like one that has
-- lost it: then a replay leaves it dead.
--
-- Returns, per job: 1 restored · 0 a job with this id is known.
--
--@args prefix, queue, record_ttl, failure_ttl, patience
--@each job, failure, note, fields
--@include now, keys, dead_stream, holder, history, counts, ends, wake

local function take_free_key(job, key)
  local kind, name = string.match(key or '', '^(.)(.+)$')
  if kind and kind ~= '~' and not holder_of(name) then redis.call('SET', idem_of(name), job) end
end

-- A restored job is counted as such, and not as a further death.
before_letter = '  '

-- Whether the latest job begins a group of dead jobs. The caller is not told.
local began_group

local function write_dead_made()
  --@paste dead
  return write_dead
end

local write

local function restore(job, failure, note, place, number)
  local record = record_of(job)
  if redis.call('EXISTS', record) == 1 then return 0 end
  local parsed, fields = cjson.decode(failure), {}
  for i = place, place + number - 1 do fields[#fields + 1] = ARGV[i] end
  redis.call('HSET', record, unpack(fields))
  take_free_key(job, redis.call('HGET', record, F.idempotency))
  remember(record, job, 'restored', note)
  write = write or write_dead_made()
  write(record, job, '', failure, parsed.type, parsed.message, parsed.reason, failure_ttl, nil, parsed.f)
  redis.call('HDEL', record, F.settled_by)
  return 1
end

local answers, restored, i = {}, 0, first
while i <= #ARGV do
  local number = tonumber(ARGV[i + 3])
  local answer = restore(ARGV[i], ARGV[i + 1], ARGV[i + 2], i + stride, number)
  restored = restored + answer
  answers[#answers + 1] = answer
  i = i + stride + number
end
if restored > 0 then count('restored', restored) end
wake_sleepers()
write_counts()
return answers
