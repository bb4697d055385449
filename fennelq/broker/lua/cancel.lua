-- cancel: ends jobs that are not running: ready ones, scheduled ones, and those that wait for their next try.
--
-- The entry of a queued job is acknowledged as well as deleted, because a blocked read may have delivered it to an
-- executor already. The fetch of that executor then finds that the entry is not pending on it any more.
--
-- Returns, per job: 1 cancelled · 0 too late: it is running or has ended · -1 unknown.
--
--@args prefix, queue, record_ttl, failure_ttl, patience, why
--@each job
--@include now, keys, fields, outcome/cancelled
--@flags allow-oom

local envelope = cjson.encode({cancelled = why})

-- Removes a waiting job from its place; false when it does not wait.
local function take_out(job, f)
  if f[F.status] == 'L' then return redis.call('ZREM', K.scheduled, job) == 1 end
  if f[F.status] == 'R' then return redis.call('ZREM', K.retries, job) == 1 end
  if f[F.status] and f[F.status] ~= 'Q' then return false end
  local lane, entry = split(f[F.place])
  if not lane then return false end
  redis.call('XACK', K[lane], GROUP, entry)
  return redis.call('XDEL', K[lane], entry) == 1
end

local function cancel(job)
  local f = load(record_of(job))
  if not f then return -1 end
  if not take_out(job, f) then return 0 end
  settle_job(job, f[F.place], 'K', failure_ttl, envelope)
  return 1
end

local answers = {}
for i = first, #ARGV do answers[#answers + 1] = cancel(ARGV[i]) end
write_counts()
return answers
