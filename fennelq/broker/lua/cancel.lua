-- cancel: ends jobs that are not running: ready ones, scheduled ones, and those that wait for their next try. Asks running
-- ones to stop.
--
-- The request is stored in the record, with its reason, and lasts until the job has ended, whichever executor has it
-- then: `fetch` and `recover` do not let it run again, and no outcome but success counts (`lib/settle`). The executor
-- that runs it gets a message. A message can be lost, so `beat` names the jobs of the set `stop` to the executor that
-- has them. The first reason is kept when the request is repeated; the message is sent again.
--
-- An operation on many jobs acts only on those that are still in a state that it asks for: see `lib/chosen`.
--
-- Returns, per job: 1 cancelled · 2 it is running, and was asked to stop · 0 too late: it has ended · -1 unknown · -2 the
-- operation does not ask for it.
--
--@args prefix, queue, record_ttl, failure_ttl, patience, why, states, sent_until
--@each job
--@include now, keys, fields, run, bell, take_out, twins, settle, chosen
--@flags allow-oom

local function reason_for(f) return f[F.stopping] or why end

-- The message names the token, so it does not stop a later run of the job.
local function ask_to_stop(job, f)
  local reason = reason_for(f)
  redis.call('HSET', record_of(job), F.stopping, reason, F.ended, '')
  -- The set is only a hint, so an error (a key of a wrong type) is ignored.
  redis.pcall('SADD', K.stopping, job)
  local lane, entry = split(f[F.place])
  local owner = run_of(f[F.run])
  if lane and owner then tell(owner, 'stop ' .. lane .. ' ' .. entry .. ' ' .. reason) end
  if f[F.twin] then twins().ask_to_stop(record_of(job), job, f[F.twin], reason) end
  return 2
end

local function cancel(job)
  local f = load(record_of(job))
  if not f then return -1 end
  if not is_chosen(f) then return -2 end
  if f[F.status] == 'X' then return ask_to_stop(job, f) end
  if not take_out(job, f) then return 0 end
  settle_job(job, f[F.place], 'K', failure_ttl, cjson.encode({cancelled = reason_for(f)}))
  return 1
end

local answers = {}
for i = first, #ARGV do answers[#answers + 1] = cancel(ARGV[i]) end
wake_sleepers()
write_counts()
return answers
