-- fetch: the only way to take jobs.
--
-- First come the entries that a blocking read has delivered. A re-delivery is a new entry, so an entry never changes
-- its owner: if XCLAIM to the same consumer returns no entry, the job was cancelled or recovered since the read.
--
-- Then come the lanes, high to low, until the free slots or the bytes are used up, or ENTRIES entries were visited: a
-- backlog of expired jobs must not block the server. After the first XREADGROUP no error may end the script, because
-- the entries read so far would be stranded in this consumer. So every read and every load is a pcall, and the reply
-- lists lanes without a group.
--
-- The gates decide whether a job may start, one file each in `lua/gates`, in the order below. The code of a gate is
-- pasted into `admit` and not called, because a call per gate and job would be a measurable part of a fetch. It may use
-- `lane`, `entry`, `job`, `deliveries`, `record` and its fields `f`. A gate refuses a job by settling or dropping it
-- and returning. A gate that takes something (a slot of a limit) must be the last one: otherwise a later gate could
-- refuse the job, and the slot would be lost.
--
-- Returns: {jobs (6 values each), drained 0/1, ms to the next due time or -1, lanes without a group, jobs of a later
-- wire version (job, task and problem of each, at most TOO_NEW)}
--
--@gates place, broken, version, expired
--@args prefix, queue, consumer, free, lanes, record_ttl, failure_ttl, patience
--@each lane, entry, job, deliveries
--@include now, keys, fields, deliveries, run
--@flags allow-oom

local BYTES, ENTRIES = 1048576, 1000

local run_so_far = consumer .. ' ' .. stamp .. ' '
local jobs, missing, taken, bytes, met = {}, {}, 0, 0, 0

-- For the first run of a plain call the counts and options are the defaults. They are left out of the reply, because
-- every word of a reply costs time.
local function start(job, deliveries, record, f)
  local starts = f[F.run] and select(3, run_of(f[F.run])) + 1 or 1
  redis.call('HSET', record, F.status, 'X', F.run, run_so_far .. starts)
  local rest = ''
  if f[F.run] or f[F.options] or deliveries > 1 then
    rest = string.format('%d %d %d ', deliveries, starts, tonumber(f[F.tries]) or 0) .. (f[F.options] or '')
  end
  local n = #jobs
  jobs[n + 1], jobs[n + 2], jobs[n + 3], jobs[n + 4], jobs[n + 5], jobs[n + 6] = f[F.place], job, f[F.task], f[F.arguments], tonumber(f[F.created]) or 0, rest
  taken, bytes = taken + 1, bytes + #f[F.arguments] + 200
end

local function admit(lane, entry, job, deliveries)
  local record = record_of(job)
  local f = load(record)
  met = met + 1
  --@pass gates
  start(job, deliveries, record, f)
end

-- How many entries to read at once: first a few, to find their size, then as many as probably fit.
local function page(room)
  if taken == 0 then return math.min(room, 8) end
  return math.min(room, math.max(1, math.floor((BYTES - bytes) / (bytes / taken))))
end

-- Reads one lane until it is empty or a limit is reached; true when it is empty.
local function read(lane)
  while taken < tonumber(free) and bytes < BYTES and met < ENTRIES do
    local asked = page(free - taken)
    local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', asked, 'STREAMS', K[lane], '>')
    if reply and reply.err then missing[#missing + 1] = lane end
    if not reply or reply.err then return true end
    local entries = reply[1][2]
    for i = 1, #entries do admit(lane, entries[i][1], entries[i][2][2], deliveries_in(entries[i][2])) end
    if #entries < asked then return true end
  end
  return false
end

local function next_due()
  local wait = -1
  for _, set in ipairs({K.scheduled, K.retries}) do
    local head = redis.pcall('ZRANGE', set, 0, 0, 'WITHSCORES')
    local due = not head.err and head[2] and math.max(0, head[2] - now)
    if due and (wait < 0 or due < wait) then wait = due end
  end
  return wait
end

for i = first, #ARGV, stride do
  local lane, entry = ARGV[i], ARGV[i + 1]
  local mine = redis.pcall('XCLAIM', K[lane], GROUP, consumer, 0, entry, 'JUSTID')
  if not mine.err and #mine == 1 then admit(lane, entry, ARGV[i + 2], tonumber(ARGV[i + 3]) or 1) end
end
local drained = 1
for lane in string.gmatch(lanes, '%S+') do
  if not read(lane) then drained = 0 end
end
write_counts()
return {jobs, drained, next_due(), missing, too_new}
