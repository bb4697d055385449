-- finish: settles a batch of runs.
--
-- XACK is the gate: it answers 1 to exactly one caller, because every re-delivery is a new entry. Who gets 0 is no longer
-- the owner and changes nothing, unless the record says that this very token settled the job already: then a reply was
-- lost and the answer is "done by you".
--
-- Answers, per job: 1 settled · 2 settled before, by you · 0 no longer yours.
--
--@keys stats, sched, retry, dlq, s, s:high, s:low, iso
--@args prefix, queue, record_ttl, failure_ttl, patience
--@each place, job, ending, value
--@include now, keys, place, history, later, settle
--@flags allow-oom

local gone = {}

local function remove(lane, entry)
  local ids = gone[lane]
  if ids then ids[#ids + 1] = entry else gone[lane] = {entry} end
end

local function done_before(job, place)
  local known = redis.pcall('HMGET', record_of(job), 's', 'p', 'T')
  if known.err or not known[1] or known[1] == 'Q' or known[1] == 'X' then return known.err == nil and known[3] == place end
  return known[2] == place or known[3] == place
end

-- `ending` is the kind and its number in one word, because every word of a call costs: S3600000, R1500, Z+60000.
local answers = {}
for i = first, #ARGV, stride do
  local place, job, ending = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local lane, entry = split(place)
  if lane and redis.pcall('XACK', prefix .. lane, GROUP, entry) == 1 then
    remove(lane, entry)
    settle_job(job, place, string.sub(ending, 1, 1), string.sub(ending, 2), ARGV[i + 3])
    answers[#answers + 1] = 1
  else
    answers[#answers + 1] = done_before(job, place) and 2 or 0
  end
end
for lane, ids in pairs(gone) do redis.call('XDEL', prefix .. lane, unpack(ids)) end
write_counts()
return answers
