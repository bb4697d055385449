-- fetch: the only way to take jobs.
--
-- First what a blocking read woke up with: the entry id never changes its owner, so an XCLAIM to oneself that answers
-- nothing means that somebody cancelled or recovered it meanwhile. Then the lanes, high to low, until the free slots or
-- the bytes are full, or ENTRIES were met: a backlog of expired jobs must not hold the server. Nothing may raise after the first XREADGROUP, or what was read is stranded in this consumer: every
-- read and every load is a pcall, and NOGROUP is an answer.
--
-- What may not run is settled here. An entry whose record is gone, of a wrong type, or says it is elsewhere is dropped
-- and counted: a job is where its record says it is.
--
-- Answers: {jobs (6 values each), drained 0/1, ms to the next due time or -1, lanes without a group, jobs of a later wire
-- version (job, task and problem of each, at most TOO_NEW)}
--
--@args prefix, queue, consumer, free, lanes, record_ttl, failure_ttl, patience
--@each lane, entry, job, deliveries
--@include now, keys, fields, place, run, history, later, settle
--@flags allow-oom

local BYTES = 1048576
local ENTRIES = 1000
local VERSION = 1
local TOO_NEW = 8

local run_so_far = consumer .. ' ' .. stamp .. ' '
local jobs, taken, bytes, met, too_new = {}, 0, 0, 0, {}

local function drop(lane, entry)
  redis.call('XACK', K[lane], GROUP, entry)
  redis.call('XDEL', K[lane], entry)
end

local function close(lane, entry, job, kind, value)
  drop(lane, entry)
  settle_job(job, lane .. '/' .. entry, kind, failure_ttl, value)
end

local function close_failed(lane, entry, job, kind, type, problem, why)
  local failure = cjson.encode({type = type, message = problem, traceback = '', reason = why, tries = 0})
  close(lane, entry, job, kind, failure)
end

-- The worker is told of it as well, because no run will tell it.
local function close_too_new(lane, entry, job, f)
  local problem = 'the record has wire version ' .. f[F.version] .. ' and this worker reads ' .. VERSION .. ': upgrade fennelq where the worker runs'
  close_failed(lane, entry, job, 'U', 'UnknownVersion', problem, 'unknown_version')
  if #too_new < 3 * TOO_NEW then
    local n = #too_new
    too_new[n + 1], too_new[n + 2], too_new[n + 3] = job, f[F.task], problem
  end
end

-- What a first run of a plain call would only repeat is left out of the answer, because every word of it costs.
local function start(job, deliveries, record, f)
  local starts = 1
  if f[F.run] then starts = select(3, run_of(f[F.run])) + 1 end
  redis.call('HSET', record, F.status, 'X', F.run, run_so_far .. starts)
  local rest = ''
  if f[F.run] or f[F.options] or deliveries > 1 then
    rest = string.format('%d %d %d ', deliveries, starts, tonumber(f[F.tries]) or 0) .. (f[F.options] or '')
  end
  local n = #jobs
  jobs[n + 1], jobs[n + 2], jobs[n + 3], jobs[n + 4], jobs[n + 5], jobs[n + 6] = f[F.place], job, f[F.task], f[F.arguments], tonumber(f[F.created]) or 0, rest
  taken = taken + 1
  bytes = bytes + #f[F.arguments] + 200
end

-- Whether an executor that knows its task has taken the job before: then it has begun, and does not expire any more.
local function begun(f) return select(3, run_of(f[F.run])) > (tonumber(f[F.blank_starts]) or 0) end

-- X at this very place means that a reply was lost, or the group was made anew under the job: it starts again. Whoever
-- has it already holds the same token, so it still ends once.
local function admit(lane, entry, job, deliveries)
  local record = record_of(job)
  local f = load(record)
  local expires = f and tonumber(f[F.expires])
  met = met + 1
  if not f or f[F.place] ~= lane .. '/' .. entry or (f[F.status] and f[F.status] ~= 'Q' and f[F.status] ~= 'X') then
    drop(lane, entry)
    count('dropped')
  elseif not f[F.task] or not f[F.arguments] then
    close_failed(lane, entry, job, 'D', 'Broken', 'the record has no task or no arguments', 'broken')
  elseif f[F.version] and tonumber(f[F.version]) ~= VERSION then
    close_too_new(lane, entry, job, f)
  elseif expires and expires <= now and not begun(f) then
    close(lane, entry, job, 'K', '{"cancelled":"expired"}')
  else
    start(job, deliveries, record, f)
  end
end

-- How many to read at once: a few to learn how large they are, then as many as fit.
local function page(room)
  if taken == 0 then return math.min(room, 8) end
  return math.min(room, math.max(1, math.floor((BYTES - bytes) / (bytes / taken))))
end

local missing = {}

-- Reads one lane until it is empty or something is full; true when it is empty.
local function read(lane)
  while taken < tonumber(free) and bytes < BYTES and met < ENTRIES do
    local asked = page(free - taken)
    local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', asked, 'STREAMS', K[lane], '>')
    if not reply then return true end
    if reply.err then
      missing[#missing + 1] = lane
      return true
    end
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
