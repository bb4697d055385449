-- recover: takes jobs from executors that have been silent for longer than a lease.
--
-- XAUTOCLAIM walks each lane from a stored cursor, a page per call, so that many new entries at the beginning never
-- hide the old ones behind them. The job gets a new entry, and with it a new token, in the same script that removes the
-- old entry: if the silent executor wakes up, it cannot settle the job any more. The new place is written before the
-- old one is removed.
--
-- Each recovery counts as a delivery. From the third delivery on the job runs alone, in quarantine, so that it cannot
-- kill an executor that runs other jobs; after `max_deliveries` it is dead. XAUTOCLAIM itself removes entries that were
-- deleted by hand from the pending list. A job that was asked to stop is cancelled instead.
--
-- A silent executor may sleep at this queue all the same: its other slots are free. Its name is removed, so that the
-- message about the job does not go back to it. A job that blocks its executor would run there again.
--
-- Of the whole fleet, one executor sweeps a queue per interval: after the sweep, the key `swept` exists until the
-- interval is over. When the server's clock is set back, the TTL of `swept` grows by the same time, and would stop all
-- sweeps for that long. So a TTL longer than any interval is ignored. `more` continues a sweep.
--
-- `beaten` is the server's clock at the sweeper's last beat, and `ago` how long ago that was by the sweeper's monotonic
-- clock. A sweep recovers no job when more than half a lease has passed since that beat by the server's clock. Then the
-- call was delayed (the server was paused, packets were late) or the clock was set forward, and in both cases executors
-- that are alive look silent. It also recovers no job when less time than `ago` has passed: then the clock was set
-- back.
--
-- Returns {swept 0/1, more 0/1, requeued, dead, vanished, jobs in quarantine that no executor has taken, jobs wait in lines
-- 0/1}, or only the jobs in quarantine when another executor has swept. `vanished` counts the entries that were dropped,
-- because no job is at this place any more.
--
--@args prefix, queue, record_ttl, failure_ttl, patience, lease, interval, max_deliveries, limit, more, beaten, ago, deaths
--@include early/no_sweep, now, keys, fields, deliveries, run, history, ready, awake, run_over, twins, lane, settle
--@flags allow-oom

local death_of = cjson.decode(deaths)
local requeued, dead, vanished, unfinished = 0, 0, 0, 0
local silent = {}

local function remove(lane, entry)
  redis.call('XACK', K[lane], GROUP, entry)
  redis.call('XDEL', K[lane], entry)
end

-- Ends a job. Settling stores the token of the silent executor. If that executor wakes up and settles the job, the answer
-- must be that it has lost the job, and not that it has settled it before.
local function settle_for_silent(lane, entry, job, kind, value)
  local record, place = record_of(job), lane .. '/' .. entry
  settle_job(job, place, kind, failure_ttl, value)
  redis.call('HDEL', record, F.settled_by)
  if redis.call('HGET', record, F.place) == place then redis.call('HSET', record, F.place, '') end
end

-- Ends a job that was asked to stop.
local function cancel(lane, entry, job, f, death)
  remember(record_of(job), job, 'recovered', death)
  settle_for_silent(lane, entry, job, 'K', cjson.encode({cancelled = f[F.stopping]}))
end

-- Ends a job whose executors have died or fallen silent too often.
local function give_up(lane, entry, job, f, deliveries, death)
  remember(record_of(job), job, 'recovered', death)
  death = death or 'nothing is known of the last death'
  local failure = cjson.encode({
    type = 'CrashLoop', traceback = '', reason = 'crash_loop', tries = tonumber(f[F.tries]) or 0,
    message = 'the executor died or fell silent ' .. deliveries .. ' times while it ran this job; last: ' .. death,
  })
  settle_for_silent(lane, entry, job, 'D', failure)
  dead = dead + 1
end

local function requeue(lane, job, f, deliveries, death)
  local home = f[F.lane] or lane
  local to = deliveries + 1 >= QUARANTINE_FROM and QUARANTINE or home
  if to == QUARANTINE then keep_lane(record_of(job), home) end
  ready(record_of(job), job, to, deliveries + 1)
  run_over('again', record_of(job), job, 'recovered', death)
  requeued = requeued + 1
end

-- Drops a silent copy of a job whose other copy runs; false when it is not such a copy.
local function drop_copy(lane, entry, job, f, death_of)
  local place = lane .. '/' .. entry
  local owner = place == f[F.place] and run_of(f[F.run]) or string.match(f[F.twin], '^%S+ (.*) %d+$')
  if not twins().drop(record_of(job), job, place, 'recovered', death_of[owner or '']) then return false end
  if owner then silent[owner] = true end
  return true
end

local function recover(lane, entry, fields)
  local job, deliveries = fields[2], deliveries_in(fields)
  local record = job and record_of(job)
  local f = record and load(record)
  if f and f[F.twin] and (not f[F.stopping] or f[F.place] ~= lane .. '/' .. entry) and drop_copy(lane, entry, job, f, death_of) then
    return remove(lane, entry)
  end
  if not f or f[F.place] ~= lane .. '/' .. entry or (f[F.status] and f[F.status] ~= 'Q' and f[F.status] ~= 'X') then
    vanished = vanished + 1
  else
    local owner = run_of(f[F.run])
    local death = death_of[owner or '']
    if owner then silent[owner] = true end
    if f[F.stopping] then
      cancel(lane, entry, job, f, death)
    elseif deliveries >= (tonumber(f[F.max_deliveries]) or tonumber(max_deliveries)) then
      give_up(lane, entry, job, f, deliveries, death)
    else
      requeue(lane, job, f, deliveries, death)
    end
  end
  remove(lane, entry)
end

-- A lane without a pending entry is not walked: XAUTOCLAIM would make a consumer there. Nor does a walk that begins at the
-- first entry store its cursor. So an idle queue needs less memory. After a cursor that Redis refuses, the next walk begins
-- at the first entry: otherwise no walk of this lane would ever find a silent executor.
local function walk(lane)
  if #redis.pcall('XPENDING', K[lane], GROUP, '-', '+', 1) == 0 then return redis.call('HDEL', K.cursors, lane) end
  local cursor = redis.call('HGET', K.cursors, lane) or '0-0'
  local page = redis.pcall('XAUTOCLAIM', K[lane], GROUP, 'recovery', lease, cursor, 'COUNT', limit)
  if page.err then return redis.call('HDEL', K.cursors, lane) end
  vanished = vanished + #(page[3] or {})
  for _, entry in ipairs(page[2]) do
    if entry[2] then recover(lane, entry[1], entry[2]) end
  end
  if page[1] == '0-0' then return redis.call('HDEL', K.cursors, lane) end
  redis.call('HSET', K.cursors, lane, page[1])
  unfinished = 1
end

for _, lane in ipairs(LANES) do walk(lane) end
if requeued > 0 then count('recovered', requeued) end
if vanished > 0 then count('vanished', vanished) end
for executor in pairs(silent) do stay_awake(executor) end
wake_sleepers()
write_counts()
return {1, unfinished, requeued, dead, vanished, in_quarantine(), redis.call('EXISTS', K.lines)}
