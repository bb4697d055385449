-- finish: settles a batch of runs.
--
-- XACK decides which caller owns a run: it counts an entry for exactly one caller, because every re-delivery is a new
-- entry. One XACK per lane acknowledges all runs of the batch, and nearly always it counts all of them.
--
-- When it counts fewer, the records decide. A run belongs to its caller while the job's record names exactly this place
-- and the job has not ended, because a script that moves a job writes its new place. If the record cannot be read, the
-- entry decides, because a script that moves a job deletes its entry. A caller that is not the owner changes nothing.
-- If the record shows that this token has settled the job before, the reply to that call was lost, and the answer is 2.
--
-- Most calls settle only runs that succeeded, all of which are the caller's. What all others need is made when the first of
-- them is met (`others`): to make it in each call would take as long as one job.
--
-- Returns, per job: 1 settled · 2 settled before, by this caller · 3 settled, and the only dead job of its kind · 0 the
-- caller does not own it any more.
--
--@args prefix, queue, record_ttl, failure_ttl, patience
--@each place, job, ending, value
--@include now, record, counts, settling, outcome/success, dead_stream
--@flags allow-oom

local entries, lane_of, entry_of = {}, {}, {}
for i = first, #ARGV, stride do
  local lane, entry = string.match(ARGV[i], '^([^/]+)/(%d+%-%d+)$')
  if lane then
    local ids = entries[lane]
    if ids then ids[#ids + 1] = entry else entries[lane] = {entry} end
    lane_of[i], entry_of[i] = lane, entry
  end
end

local all_ours = {}
for lane, ids in pairs(entries) do
  all_ours[lane] = redis.pcall('XACK', K[lane], GROUP, unpack(ids)) == #ids
end

-- What the runs need that have not just succeeded, once one of them has been met.
local others_made

-- `ending` has the kind and its number in one word, because every word of a call costs time: S3600000, R1500, Z+60000.
-- Most runs of a batch end alike, so the word is taken apart when it is another one than that of the run before.
local ending, kind, number

local settle_run

local function others()
  if others_made then return others_made end
  local made = {}
  others_made = made
  --@paste run, wake, twins, lines, settle
  opens_at_end = true
  made.job_ended, made.settle_broken = ends_made().job_ended, settle_broken

  local function remove(lane, entry)
    redis.pcall('XACK', K[lane], GROUP, entry)
    return redis.pcall('XDEL', K[lane], entry) == 1
  end

  -- Settles a run that is the caller's.
  function made.settle(i)
    if kind == 'K' and redis.pcall('HEXISTS', record_of(ARGV[i + 1]), F.twin) == 1 then
      twins().claim(record_of(ARGV[i + 1]), ARGV[i])
    end
    settle_job(ARGV[i + 1], ARGV[i], kind, number, ARGV[i + 3])
    if not began_group then return 1 end
    began_group = nil
    return 3
  end

  -- Settles a run of a lane in which XACK counted too few entries. If the entry existed but the job's record names
  -- another place, the entry is dropped.
  function made.settle_by_record(i)
    local place, lane = ARGV[i], lane_of[i]
    local known = redis.pcall('HMGET', record_of(ARGV[i + 1]), F.status, F.place, F.settled_by, F.twin)
    local status, at, settled = known[1], known[2], known[3]
    local ended = status and not string.find('QX', status, 1, true)
    local removed = lane and remove(lane, entry_of[i])
    local owned = at == place or known[4] and twins().is_run(known[4], place)
    if owned and not ended or removed and not at then return settle_run(i) end
    if removed then count('dropped') end
    return (at == place or settled == place) and 2 or 0
  end

  function made.close() wake_sleepers() end

  return made
end

function settle_run(i)
  if removed_copies and removed_copies[ARGV[i]] then return 0 end
  if ARGV[i + 2] ~= ending then
    ending = ARGV[i + 2]
    kind, number = string.sub(ending, 1, 1), string.sub(ending, 2)
  end
  if kind ~= 'S' and kind ~= 'N' then return others().settle(i) end
  local job = ARGV[i + 1]
  local record = record_of(job)
  settling = ARGV[i]
  -- In a pcall of its own, so that one job's error does not end the whole batch.
  local ok, problem = pcall(succeed, record, job, settling, kind, number, ARGV[i + 3])
  if ok then count(kind) else others().settle_broken(record, job, settling, problem) end
  return 1
end

function end_marked(...) others().job_ended(...) end

local answers = {}
for i = first, #ARGV, stride do
  answers[#answers + 1] = (all_ours[lane_of[i]] and settle_run or others().settle_by_record)(i)
end
for lane, ids in pairs(entries) do
  if all_ours[lane] then redis.call('XDEL', K[lane], unpack(ids)) end
end
if others_made then others_made.close() end
write_counts()
return answers
