-- double: gives jobs whose run takes too long a second copy, for another executor: see `lib/twins`.
--
-- The caller has found that these runs take longer than most of their task, and that the task may run twice. A job is
-- doubled if it still runs under this token, was not doubled before, was not asked to stop, and is not in quarantine: a job
-- that may kill its executor does not get a second one.
--
-- The caller itself is not woken for the new entries, although it may sleep at this queue: it could not start them. It stays
-- among the sleepers, for other jobs. While a person has paused the queue, no job is doubled.
--
-- The record gets wire version 2, so that an executor of an earlier version never ends a job that has a twin: it would not
-- remove the other copy.
--
-- Without `allow-oom`: a second copy is never necessary, so the server refuses it when it is over maxmemory.
--
-- Returns, per run: 1 doubled · 0 not.
--
--@args prefix, consumer
--@each lane, entry
--@include pausing, now, keys, fields, deliveries, entries, sleepers, history, counts

local function double(lane, entry)
  local found = redis.pcall('XRANGE', K[lane], entry, entry)
  local job = found[1] and found[1][2][2]
  local f = job and load(record_of(job))
  if not f or f[F.status] ~= 'X' or f[F.place] ~= lane .. '/' .. entry then return 0 end
  if f[F.twin] or f[F.stopping] or lane == QUARANTINE then return 0 end
  local token = lane .. '/' .. add_entry(lane, job, deliveries_in(found[1][2]))
  local record = record_of(job)
  redis.call('HSET', record, F.twin, token, F.version, f[F.version] or '2')
  remember(record, job, 'doubled')
  count('doubled')
  return 1
end

-- Takes the caller out of the sets of sleepers; returns those in which it was.
local function step_aside()
  local left = {}
  local function leave(set)
    if redis.pcall('SREM', set, consumer) == 1 then left[#left + 1] = set end
  end
  leave(K.sleepers)
  for _, lane in ipairs(PRIORITIES) do leave(sleepers_of(lane)) end
  return left
end

local answers = {}
for i = first, #ARGV, stride do
  answers[#answers + 1] = string.find(pausing, 'c', 1, true) and 0 or double(ARGV[i], ARGV[i + 1])
end
local left = next(added) and step_aside() or {}
wake_sleepers()
for _, set in ipairs(left) do redis.pcall('SADD', set, consumer) end
write_counts()
return answers
