-- cancel: ends jobs that are not running: ready ones, scheduled ones, and those that wait for their next try. Asks running
-- ones to stop.
--
-- The entry of a queued job is acknowledged as well as deleted, because a worker of an earlier version may have read it
-- without starting the job.
--
-- The request is stored in the record, with its reason, and lasts until the job has ended, whichever executor has it
-- then: `fetch` and `recover` do not let it run again, and no outcome but success counts (`lib/settle`). The executor
-- that runs it gets a message. A message can be lost, so `beat` names the jobs of the set `stop` to the executor that
-- has them. The first reason is kept when the request is repeated; the message is sent again.
--
-- Returns, per job: 1 cancelled · 2 it is running, and was asked to stop · 0 too late: it has ended · -1 unknown.
--
--@args prefix, queue, record_ttl, failure_ttl, patience, why
--@each job
--@include now, keys, fields, run, bell, outcome/cancelled
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

-- The message names the token, so it does not stop a later run of the job.
local function ask_to_stop(job, f)
  local reason = f[F.stopping] or why
  redis.call('HSET', record_of(job), F.stopping, reason, F.ended, '')
  -- The set is only a hint, so an error (a key of a wrong type) is ignored.
  redis.pcall('SADD', K.stopping, job)
  local lane, entry = split(f[F.place])
  local owner = run_of(f[F.run])
  if lane and owner then tell(owner, 'stop ' .. lane .. ' ' .. entry .. ' ' .. reason) end
  return 2
end

local function cancel(job)
  local f = load(record_of(job))
  if not f then return -1 end
  if f[F.status] == 'X' then return ask_to_stop(job, f) end
  if not take_out(job, f) then return 0 end
  settle_job(job, f[F.place], 'K', failure_ttl, envelope)
  return 1
end

local answers = {}
for i = first, #ARGV do answers[#answers + 1] = cancel(ARGV[i]) end
write_counts()
return answers
