-- replay: puts dead jobs back into their lanes, with the same id and with all their retries again.
--
-- A job may get new arguments. Then the caller, who has the code of the task, also sends the gates and the idempotency key
-- that follow from them: those in the record belong to the old arguments. The history keeps the old ones, in `before`.
--
-- Of concurrent callers, one finds the DLQ entry. Without `allow-oom`, the server refuses the script when it is over
-- maxmemory, before any write, and the jobs stay in the DLQ.
--
-- Returns, per entry: 1 replayed · 0 no longer there · -1 its idempotency key is taken by another job.
--
--@args prefix
--@each entry, changes
--@include replayable, arrive, run_over, leave_group

-- Gives up the key that belongs to the old arguments. Returns the ms that were left of it; nil when another job has it.
local function free_key(job, key)
  local name = string.match(key, '^.(.+)$')
  if named_by(name) ~= job then return end
  local left = redis.call('PTTL', idem_of(name))
  redis.call('DEL', idem_of(name))
  return left
end

-- Takes the job's idempotency key again. One with its own window is not taken again; a new one gets what is left of it.
local function take_key_again(record, job, f, left)
  local kind, name = string.match(f[F.idempotency] or '', '^([=<>^~])(.+)$')
  if not kind then return end
  if kind == '~' then
    if left and left > 0 then redis.call('SET', idem_of(name), job, 'PX', left) end
    return
  end
  redis.call('SET', idem_of(name), job)
  -- It begins anew: starts before the replay do not count.
  redis.call('HSET', record, F.blank_starts, (select(3, run_of(f[F.run]))))
end

-- Writes the changes. The job may hold slots of its old gates, because a worker of an earlier version does not give them
-- back. A record with gates has wire version 2 at least.
local function change(record, job, f, changes)
  if f[F.gates] and changes[F.gates] then
    pcall(lines().leave, job, f[F.gates], f[F.lane] or NORMAL)
  end
  for letter, value in pairs(changes) do
    if value == '' then
      f[letter] = nil
      redis.call('HDEL', record, letter)
    elseif letter ~= 'before' then
      f[letter] = value
      redis.call('HSET', record, letter, value)
    end
  end
  if f[F.gates] and not f[F.version] then redis.call('HSET', record, F.version, '2') end
end

local function replay(entry, changes)
  local job, f, found = dead_job(entry)
  if not f then return 0 end
  local record, key = record_of(job), changes[F.idempotency]
  local moves = key and f[F.idempotency] and key ~= f[F.idempotency]
  if is_taken(job, key or f[F.idempotency], moves) then return -1 end
  redis.call('XDEL', K.dead, entry)
  leave_group(found)
  local left = moves and free_key(job, f[F.idempotency])
  change(record, job, f, changes)
  take_key_again(record, job, f, left)
  redis.call('PERSIST', record)
  redis.call('DEL', result_of(job))
  redis.call('HDEL', record, F.reason, F.settled_by, F.expires, F.too_old_since, F.too_old_because, F.strandings, F.stopping)
  -- Not HINCRBY: the entry is removed by now, and an error about a damaged number would lose this job and stop the others.
  redis.call('HSET', record, F.tries, 0, F.replays, (tonumber(f[F.replays]) or 0) + 1)
  arrive(record, job, f[F.lane] or NORMAL, f[F.gates])
  run_over('again', record, job, 'replayed', changes.before)
  return 1
end

local answers, replayed, i = {}, 0, first
while i <= #ARGV do
  local number = tonumber(ARGV[i + 1]) or 0
  local answer = replay(ARGV[i], read_changes(i + stride, number))
  if answer == 1 then replayed = replayed + 1 end
  answers[#answers + 1] = answer
  i = i + stride + number
end
if replayed > 0 then count('replayed', replayed) end
wake_sleepers()
write_counts()
return answers
