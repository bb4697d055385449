-- replay: puts dead jobs back into their lanes, with the same id and with all their retries again.
--
-- The XDEL of the DLQ entry decides between concurrent callers: it returns 1 to one of them. Without `allow-oom`, the
-- server refuses the script when it is over maxmemory, before any write, and the jobs stay in the DLQ.
--
-- Returns, per entry: 1 replayed · 0 no longer there · -1 its idempotency key is taken by another job.
--
--@args prefix
--@each entry
--@include now, keys, fields, idempotency, ready, run_over

-- Takes the job's idempotency key again; false when another job holds it.
local function take_key_again(job, idem)
  local kind, name = string.match(idem or '', '^([=~])(.+)$')
  if kind ~= '=' then return true end
  local holder = named_by(name)
  if holder and holder ~= job and redis.call('EXISTS', record_of(holder)) == 1 then return false end
  redis.call('SET', idem_of(name), job)
  return true
end

local function replay(entry)
  local found = redis.call('XRANGE', K.dead, entry, entry)[1]
  local job = found and found[2][2]
  if not job then return 0 end
  local record = record_of(job)
  local f = load(record)
  if not f or f[F.place] ~= 'dlq/' .. entry or not f[F.task] or not f[F.arguments] then return 0 end
  if not take_key_again(job, f[F.idempotency]) then return -1 end
  if redis.call('XDEL', K.dead, entry) ~= 1 then return 0 end
  redis.call('PERSIST', record)
  redis.call('DEL', result_of(job))
  redis.call('HDEL', record, F.reason, F.settled_by, F.expires, F.too_old_since, F.too_old_because, F.strandings, F.stopping)
  redis.call('HSET', record, F.tries, 0)
  redis.call('HINCRBY', record, F.replays, 1)
  ready(record, job, f[F.lane] or NORMAL, 1)
  run_over('again', record, job, 'replayed')
  return 1
end

local answers, replayed = {}, 0
for i = first, #ARGV do
  local answer = replay(ARGV[i])
  if answer == 1 then replayed = replayed + 1 end
  answers[#answers + 1] = answer
end
if replayed > 0 then count('replayed', replayed) end
wake_sleepers()
write_counts()
return answers
