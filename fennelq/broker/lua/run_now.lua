-- run_now: moves jobs that are due later to their lanes, as if they were due now: scheduled ones, and those that wait for
-- their next try. A job whose limit does not let it start goes to its line.
--
-- As in `promote`, the new place is written before the old one is removed. How long a scheduled job waits for its first
-- start counts from now.
--
-- Returns, per job: 1 moved · 0 it does not wait for a time, or the operation does not ask for it · -1 unknown.
--
--@args prefix, states, sent_until
--@each job
--@include now, keys, fields, arrive, chosen
--@flags allow-oom

local SETS = {sched = K.scheduled, retry = K.retries}

local function run_now(job)
  local record = record_of(job)
  local f = load(record)
  if not f then return -1 end
  local set = SETS[f[F.place]]
  if not set or not is_chosen(f) or not redis.call('ZSCORE', set, job) then return 0 end
  if not f[F.run] and not f[F.due] then redis.call('HSET', record, F.due, stamp) end
  arrive(record, job, f[F.lane] or NORMAL, f[F.gates])
  redis.call('ZREM', set, job)
  return 1
end

local answers = {}
for i = first, #ARGV do answers[#answers + 1] = run_now(ARGV[i]) end
wake_sleepers()
return answers
