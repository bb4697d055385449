-- fetch: the only way to take jobs.
--
-- It reads the lanes, high to low, until the free slots or the bytes are used up, or ENTRIES entries were visited: a
-- backlog of expired jobs must not block the server. After the first XREADGROUP no error may end the script, because the
-- entries read so far would be stranded in this consumer. So every read and every load is a pcall, and the reply contains
-- the error of a lane that cannot be read.
--
-- An executor that has found all its lanes empty goes to sleep in the same step, if it asks for that: its name enters the
-- set from which `lib/ring` takes the executor to wake. No job can arrive in between. If jobs are left, another executor
-- is woken, so that a burst gets as many executors as it needs.
--
-- The gates decide whether a job may start, one file each in `lua/gates`, in the order below. The check of a gate is
-- pasted into `admit` and not called, because a call per gate and job would be a measurable part of a fetch. It may use
-- `lane`, `entry`, `job`, `deliveries`, `record` and its fields `f`. A gate refuses a job by settling or dropping it
-- and returning. A gate that takes something (a slot of a limit) must be the last one: otherwise a later gate could
-- refuse the job, and the slot would be lost.
--
-- Most calls meet only jobs that every gate lets pass. All other functions are made when the first other job is met
-- (`gates`): to make them in each call would take as long as two starts.
--
-- While the queue is paused it reads no lane: `early/paused`.
--
-- `sleeps`: '' the executor does not sleep · all · some: it reads only these lanes.
--
-- Returns the ms to the next due time or -1 while the queue is empty or paused: most fetches of an idle fleet find nothing,
-- and every word of a reply costs time. Otherwise {jobs (6 values each), drained 0/1, ms to the next due time or -1, lanes
-- whose group was new, the error of a lane or '', jobs of a later wire version (job, task and problem of each, at most
-- TOO_NEW), the server's time in ms or 0 when there was no job}
--
--@gates place, stopping, version, broken, expired, limits
--@args prefix, queue, consumer, free, lanes, sleeps, record_ttl, failure_ttl, patience
--@include early/paused, early/no_jobs, now, record, fields, deliveries, sleepers, dead_stream
--@flags allow-oom

local BYTES, ENTRIES = 1048576, 1000

local run_so_far = consumer .. ' ' .. stamp .. ' '
local first_run = run_so_far .. '1'
local jobs, made, too_new, problem, taken, bytes, met, last = {}, {}, {}, '', 0, 0, 0, {}

-- For the first run of a plain call the counts and options are the defaults. They are left out of the reply, because
-- every word of a reply costs time.
local function start(job, deliveries, record, f)
  local run, starts = first_run, 1
  if f[F.run] then
    --@paste run
    starts = select(3, run_of(f[F.run])) + 1
    run = run_so_far .. starts
  end
  redis.call('HSET', record, F.status, 'X', F.run, run)
  local rest = ''
  if f[F.run] or f[F.options] or f[F.due] or deliveries > 1 then
    rest = string.format('%d %d %d ', deliveries, starts, tonumber(f[F.tries]) or 0) .. (f[F.due] or '') .. ' ' .. (f[F.options] or '')
  end
  local n = #jobs
  jobs[n + 1], jobs[n + 2], jobs[n + 3], jobs[n + 4], jobs[n + 5], jobs[n + 6] = f[F.place], job, f[F.task], f[F.arguments], tonumber(f[F.created]) or 0, rest
  taken, bytes = taken + 1, bytes + #f[F.arguments] + 200
end

-- What the gates need, once a job has been met that one of them refuses or looks at.
local gates_made

local function gates()
  if gates_made then return gates_made end
  local made = {}
  gates_made = made
  --@paste gates
  made.refuse, made.refuse_failed = refuse, refuse_failed

  local let_in = 0

  -- Whether starts have let jobs into their lanes since the last call of this.
  function made.have_let_in()
    local before = let_in
    let_in = calls
    return calls > before
  end

  -- A lane is about to be read. No other executor is woken for what has been added to it.
  function made.will_read(lane)
    if added[lane] then empty[lane], added[lane] = nil, nil end
  end

  -- The last step of the call. Returns when the first job is due that the gates have put off.
  function made.close()
    wake_sleepers()
    write_counts()
    return soonest
  end

  return made
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
  return math.min(room, taken == 0 and 8 or math.max(1, math.floor((BYTES - bytes) / (bytes / taken))))
end

-- The next entries of a lane, if there are any. A lane is made by its first job, and its group by the first executor that
-- reads it, from the beginning, so that the jobs before are delivered. An empty lane is not read, because that would make a
-- consumer there.
local function read(lane, asked)
  if empty[lane] then return end
  local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', asked, 'STREAMS', K[lane], '>')
  if reply and reply.err and string.sub(reply.err, 1, 7) == 'NOGROUP' then
    made[#made + 1] = lane
    redis.pcall('XGROUP', 'CREATE', K[lane], GROUP, '0')
    reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', asked, 'STREAMS', K[lane], '>')
  end
  if reply and reply.err then problem = reply.err end
  return reply and not reply.err and reply[1][2]
end

-- Wakes another executor if one sleeps and this lane has entries that no executor has taken.
local function pass_on(lane)
  if (tonumber(redis.pcall('EXISTS', K.sleepers, sleepers_of(lane))) or 0) == 0 then return end
  --@paste delivered, ring
  local from = last[lane] and '(' .. last[lane] or after_delivered(K[lane])
  local left = redis.pcall('XRANGE', K[lane], from, '+', 'COUNT', 1)
  if not left.err and #left > 0 then ring(lane) end
end

-- Takes jobs from a lane until it is empty or a limit is reached; true when it is empty. What is left is passed on.
local function take(lane)
  while taken < tonumber(free) and bytes < BYTES and met < ENTRIES do
    local asked = page(free - taken)
    local entries = read(lane, asked)
    if not entries then return true end
    for i = 1, #entries do admit(lane, entries[i][1], entries[i][2][2], deliveries_in(entries[i][2])) end
    last[lane] = entries[#entries][1]
    if #entries < asked then return true end
  end
  pass_on(lane)
end

-- A start may let a job into a lane that was read already, and also into a higher one: see `gates/limits`. So the lanes are
-- read again from the first, and then all of them.
local drained
local read_first = normal_alone and NORMAL or lanes
repeat
  drained = 1
  for lane in string.gmatch(gates_made and lanes or read_first, '%S+') do
    if gates_made then gates_made.will_read(lane) end
    if not take(lane) then drained = 0 end
  end
until drained == 0 or not gates_made or not gates_made.have_let_in()
if drained == 1 and problem == '' then
  --@paste fall_asleep
  fall_asleep()
end
local due = -1
if gates_made and gates_made.close() or not plain then
  --@paste next_due
  due = next_due()
end
return {jobs, drained, due, made, problem, too_new, now}
