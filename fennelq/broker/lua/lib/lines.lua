-- Lines: where jobs wait until their limits let them start.
--
-- A job with limits names its gates in the field `gates`, numbers first: `c2:account/17 r100000/1:send t1:tenant/9`. Each
-- gate has a kind, which says how many it lets through:
--
--     c  concurrency    so many at the same time
--     r  rate           one per interval (in microseconds), and so many at once after a pause
--     t  turn           one job of this key waits in the lane at a time, so that the keys take turns
--
-- `slots:<gate>` holds the jobs that are through the gate: with the score 0 those that run, with 1, 2, 3 those that wait
-- in the high, the normal and the low lane. They are jobs and not a number, so that a slot whose job is gone can be found.
--
-- Only a start decides whether a job gets its slots (`pass`, called by `gates/limits`). The scripts that bring jobs
-- into the lanes only keep out jobs that could not start: these wait in `line:<gates>@<lane>`, without a slot.
-- `wait:<gate>` holds the lines that wait at a gate, and `lines` says for each line at which gate it waits. A line that
-- is not empty waits at exactly one gate, and that gate is shut. The script that gives a slot back calls the next job
-- into its lane, and rings for it. A rate opens without a script, by the time, so it has an alarm in `turn`, unless a
-- job is through: that job's start sets the alarm.
--
-- Most calls of a script meet no job with limits, and making all these functions would cost each of them 4 us. So they are
-- made when the first such job is met.
--
-- An error of redis.pcall is a table without elements: what cannot be read is missing.
--@include now, keys, entries

-- The lane to which a job returns: that of its place, unless this is the quarantine or no lane.
local function home_of(place, lane)
  local at = split(place)
  if at and at ~= QUARANTINE and at ~= 'dlq' then return at end
  return lane or NORMAL
end

local lines_made
-- How many jobs this script has let into their lanes.
local calls = 0
-- Whether gates are opened once for all runs that have freed them, at the end of the script. For scripts that neither bring
-- new jobs, which would go through before those that wait, nor can fail before their end.
local opens_at_end = false

local function lines()
  if lines_made then return lines_made end
  local made = {}
  lines_made = made
  --@paste lane, deliveries

  -- If a job starts late by at most this much, its rate loses no start.
  local GRACE = 100
  -- Lines that are looked at when one gate opens, and in one script. The promoter continues at once with the others.
  local MOST, MOST_OF_SCRIPT = 100, 1000
  -- Before a lane's scores in `wait`, which are moments in microseconds.
  local LANE = 2251799813685248
  local RANK = {}
  for rank, lane in ipairs(PRIORITIES) do RANK[lane] = rank end

  local function slots_of(gate) return prefix .. 'slots:' .. gate.id end
  local function rate_of(gate) return prefix .. 'rate:' .. gate.id end
  local function wait_of(id) return prefix .. 'wait:' .. id end
  local function line_of(name) return prefix .. 'line:' .. name end

  local looked, moves, moments = 0, 0, 0

  -- A moment in microseconds that no other of this script shares.
  local function moment()
    moments = moments + 1
    return clock[1] * 1000000 + clock[2] + moments
  end

  -- Numbers that an operator has set, by definition: `c:account`, for all gates `c:account/…`.
  local numbers

  local function numbers_of(kind, name, most, burst)
    if not numbers then
      numbers = {}
      local flat = redis.pcall('HGETALL', K.limits)
      for i = 1, #flat, 2 do numbers[flat[i]] = flat[i + 1] end
    end
    local set = numbers[kind .. ':' .. string.match(name, '^[^/]+')]
    if set then most, burst = string.match(set, '^(%d+)/?(%d*)') end
    return tonumber(most) or 1, tonumber(burst) or 1
  end

  local seen = {}

  -- The gates of a job that belongs to a lane, and the name of its line.
  local function gates_of(text, lane)
    local known = seen[lane .. text]
    if known then return known[1], known[2] end
    local gates, ids = {}, {}
    for kind, digits, after, name in string.gmatch(text, '(%a)(%d*)/?(%d*):(%S+)') do
      local most, burst = numbers_of(kind, name, digits, after)
      local gate = {kind = kind, most = most, id = kind .. ':' .. name}
      if kind == 't' then gate.id = gate.id .. '@' .. lane end
      if kind == 'r' then
        gate.interval = most / 1000
        gate.grace = (burst - 1) * gate.interval + GRACE
      end
      gates[#gates + 1], ids[#ids + 1] = gate, kind .. ':' .. name
    end
    local name = table.concat(ids, '+') .. '@' .. lane
    seen[lane .. text] = {gates, name}
    return gates, name
  end

  -- Rates are bounded by GCRA: `rate:<gate>` is the time at which the next job would arrive if all came evenly. If it
  -- is later than the numbers of the rate allow, the numbers were changed since: then one job may start at once, and
  -- the new numbers apply from there. A `!` behind it means that RateLimited has set it: then it applies whatever the
  -- numbers are.
  local function arrival(gate)
    local at, told = string.match(redis.call('GET', rate_of(gate)) or '0', '^([%d.]+)(!?)')
    at = tonumber(at)
    if told == '' and at > now + gate.grace + gate.interval + 1 then at = now + gate.grace end
    return math.max(at, now), told
  end

  -- When a rate lets another job start, after the `ahead` jobs that are through already.
  local function free_at(gate, ahead) return (arrival(gate)) + ahead * gate.interval - gate.grace end

  local function write_arrival(gate, at, told)
    redis.call('SET', rate_of(gate), string.format('%.3f', at) .. told, 'PX', math.ceil(at - now + gate.grace))
  end

  -- Takes one start from the rate for a job that starts again, even if the rate is used up. The debt is never larger
  -- than that of one regular start.
  local function charge(gate)
    if gate.interval == 0 then return end
    local at, told = arrival(gate)
    -- The stop by RateLimited is over.
    if at - gate.grace <= now then told = '' end
    if told == '' then at = math.min(at, now + gate.grace) end
    write_arrival(gate, at + gate.interval, told)
  end

  -- By gate and rank, how many jobs are through, as `count_through` has read it and this script has changed it.
  local known_through = {}

  -- How many jobs are through a gate: those that run, and those that wait in a lane of this rank or of a higher one.
  local function count_through(gate, rank)
    local known = known_through[gate.id] or {}
    known_through[gate.id] = known
    known[rank] = known[rank] or redis.call('ZCOUNT', slots_of(gate), 0, rank)
    return known[rank]
  end

  -- Gives a job a slot of a gate, at this rank. `before` is its rank until now; nil when it has no slot.
  local function take_slot(gate, job, rank, before)
    local is_new = redis.call('ZADD', slots_of(gate), rank, job) == 1
    if not is_new and not before then known_through[gate.id] = nil end
    for to, number in pairs(known_through[gate.id] or {}) do
      if to >= rank and not (before and to >= tonumber(before)) then known_through[gate.id][to] = number + 1 end
    end
  end

  local function free_slot(gate, job)
    known_through[gate.id] = nil
    return redis.pcall('ZREM', slots_of(gate), job) == 1
  end

  -- Whether a job of this rank has to wait: for those that run, and for those of its lane and of higher lanes.
  local function is_shut(gate, rank)
    local through = count_through(gate, rank)
    if gate.kind == 'r' then return free_at(gate, through) > now, through end
    return through >= gate.most, through
  end

  local function first_shut(gates, rank)
    for _, gate in ipairs(gates) do
      local shut, through = is_shut(gate, rank)
      if shut then return gate, through end
    end
  end

  -- Sets the alarm of a rate. While a job is through it is not needed. A fast rate lets some through at once, so that an
  -- alarm rings at most 20 times a second.
  local function arm(gate, through)
    if through > 0 then return end
    local due = free_at(gate, 0)
    if gate.interval < GRACE / 2 then due = due + GRACE / 2 end
    due = math.max(math.ceil(due), now + 1)
    redis.call('ZADD', K.alarms, due, gate.id)
    if (not soonest or due < soonest) and redis.call('ZRANGE', K.alarms, 0, 0)[1] == gate.id then soonest = due end
  end

  local function to_the_end(id, name, rank)
    redis.call('ZADD', wait_of(id), string.format('%.0f', rank * LANE + moment()), name)
  end

  local function wait_at(name, gate, rank, through)
    local before = redis.call('HGET', K.lines, name)
    to_the_end(gate.id, name, rank)
    if before and before ~= gate.id then redis.pcall('ZREM', wait_of(before), name) end
    if before ~= gate.id then redis.call('HSET', K.lines, name, gate.id) end
    if gate.kind == 'r' then arm(gate, through) end
  end

  -- A line that is empty waits nowhere. In pcalls: the last job of it has been taken out, and must not be lost because one of
  -- these keys is of a wrong type.
  local function dissolve(name, id)
    id = id or redis.pcall('HGET', K.lines, name)
    if type(id) == 'string' then redis.pcall('ZREM', wait_of(id), name) end
    redis.pcall('HDEL', K.lines, name)
  end

  -- Whether a line is empty, as far as this script knows.
  local empty = {}

  local function is_empty(name)
    if empty[name] == nil then empty[name] = redis.call('EXISTS', line_of(name)) == 0 end
    return empty[name]
  end

  local function join(name, job, score)
    empty[name] = false
    moves = moves + redis.call('ZADD', line_of(name), string.format('%.0f', score), job)
  end

  local function quit(name, job)
    empty[name] = nil
    local left = redis.call('ZREM', line_of(name), job)
    moves = moves - left
    return left == 1
  end

  -- Through all its gates and into its lane. Returns its place.
  local function let_in(job, lane, gates, deliveries)
    calls = calls + 1
    for _, gate in ipairs(gates) do take_slot(gate, job, RANK[lane]) end
    local to = deliveries >= QUARANTINE_FROM and QUARANTINE or lane
    return to .. '/' .. add_entry(to, job, deliveries)
  end

  -- A job comes: into its lane if all its gates are open and no job is before it, else to the end of its line. Returns its
  -- place.
  function made.enter(job, lane, text)
    local gates, name = gates_of(text, lane)
    local rank = RANK[lane]
    if is_empty(name) then
      local shut, through = first_shut(gates, rank)
      if not shut then return let_in(job, lane, gates, 1) end
      wait_at(name, shut, rank, through)
    end
    join(name, job, moment())
    return 'line'
  end

  -- Takes a job out of the slots of its gates. Returns the gates that it held.
  local function give_back(job, gates)
    local freed = {}
    for _, gate in ipairs(gates) do
      if free_slot(gate, job) then freed[#freed + 1] = gate end
    end
    return freed
  end

  -- The next of a line goes into its lane; `alone` when no other line waits at this gate. Returns whether the gate is known
  -- to be shut. A job whose gates cannot be read goes into its lane: its start finds out what is wrong with them.
  local function move_up(name, id, alone)
    local head = redis.pcall('ZRANGE', line_of(name), 0, 1)
    local job = head[1]
    if not job then return dissolve(name, id) end
    local record = record_of(job)
    local f = redis.pcall('HMGET', record, F.place, F.gates, F.lane, F.deliveries)
    if f[1] ~= 'line' or not f[2] then
      quit(name, job)
      return
    end
    local lane = f[3] or NORMAL
    local gates, rank = gates_of(f[2], lane), RANK[lane]
    local ok, shut, through = pcall(first_shut, gates, rank)
    if ok and shut then
      if shut.id ~= id then
        ok = pcall(wait_at, name, shut, rank, through)
      elseif shut.kind == 'r' then
        arm(shut, through)
      end
      if ok then return shut.id == id end
    end
    redis.call('HSET', record, F.place, let_in(job, lane, ok and gates or {}, tonumber(f[4]) or 1))
    if f[4] then redis.call('HDEL', record, F.deliveries) end
    quit(name, job)
    if not head[2] then
      dissolve(name, id)
    elseif not alone then
      to_the_end(id, name, rank)
    end
    -- Ask this gate again before the next line is looked at: mostly it is shut now. No alarm is needed, because a job is
    -- through.
    for _, gate in ipairs(ok and gates or {}) do
      if gate.id == id then return (is_shut(gate, rank)) end
    end
  end

  local function let_in_some(id, most)
    for _ = 1, most do
      local names = redis.call('ZRANGE', wait_of(id), 0, 1)
      if not names[1] then return end
      if looked >= MOST_OF_SCRIPT then break end
      looked = looked + 1
      if move_up(names[1], id, not names[2]) then return end
    end
    redis.call('ZADD', K.alarms, now, id)
    soonest = now
  end

  -- Lets in the jobs for which a gate is open now. A line that turns out to wait for another gate goes and waits there. An
  -- error is only counted: it says nothing about the job that has gone through the gate.
  function made.open(id, most)
    if not pcall(let_in_some, id, most or MOST) then redis.pcall('HINCRBY', K.counters, 'open_failed', 1) end
  end

  local function open_all(gates)
    for _, gate in ipairs(gates) do made.open(gate.id) end
  end

  -- As `enter`, for a job that exists. It may still hold slots: a worker of an earlier version does not give them back.
  function made.come(record, job, lane, text)
    local freed = give_back(job, gates_of(text, lane))
    local place = made.enter(job, lane, text)
    redis.call('HSET', record, F.status, 'Q', F.place, place)
    open_all(freed)
  end

  -- How many slots of each gate were freed that is opened at the end.
  local freed_slots = {}

  -- A run is over, and its job does not go on at once.
  function made.leave(job, text, lane)
    local freed = give_back(job, (gates_of(text, lane)))
    if not opens_at_end then return open_all(freed) end
    for _, gate in ipairs(freed) do freed_slots[gate.id] = (freed_slots[gate.id] or 0) + 1 end
  end

  -- A job is about to start: it takes all its slots, or none; then this returns the gate that is shut. A slot that the
  -- job has already (it was handed back, or recovered) is its own. A further start counts against a rate, but the rate
  -- cannot stop it.
  function made.pass(job, text, lane)
    local gates, passed = gates_of(text, lane), {}
    for _, gate in ipairs(gates) do
      local rank = redis.call('ZSCORE', slots_of(gate), job)
      if gate.kind == 'c' then
        gate.rank = rank
        if rank ~= '0' and count_through(gate, 0) >= gate.most then return gate end
      elseif gate.kind == 'r' and rank and free_at(gate, 0) > now then
        return gate
      end
    end
    for _, gate in ipairs(gates) do
      if gate.kind == 'c' then
        take_slot(gate, job, 0, gate.rank)
      else
        if gate.kind == 'r' then charge(gate) end
        free_slot(gate, job)
        passed[#passed + 1] = gate
      end
    end
    open_all(passed)
  end

  local function to_the_front(record, job, lane, name, gate)
    local head = redis.call('ZRANGE', line_of(name), 0, 0, 'WITHSCORES')
    join(name, job, head[2] and head[2] - 1 or moment())
    redis.call('HSET', record, F.place, 'line')
    keep_lane(record, lane)
    local _, through = is_shut(gate, RANK[lane])
    wait_at(name, gate, RANK[lane], through)
  end

  -- Puts the job back to the front of its line, because another job has taken the slot. It takes nothing from a limit.
  function made.step_back(record, job, lane, text, shut, deliveries)
    local gates, name = gates_of(text, lane)
    local freed = give_back(job, gates)
    redis.call('HSET', record, F.status, 'Q')
    if deliveries > 1 then redis.call('HSET', record, F.deliveries, deliveries) end
    to_the_front(record, job, lane, name, shut)
    open_all(freed)
  end

  -- Shuts the rates of a job for `wait` ms, whatever they would allow. Returns one of them; nil when it has none.
  local function shut_rates(gates, wait)
    local shut
    for _, gate in ipairs(gates) do
      if gate.kind == 'r' then
        write_arrival(gate, math.max((arrival(gate)), now + wait + gate.grace), '!')
        shut = gate
      end
    end
    return shut
  end

  -- The run of a job was refused by another service: its rates wait. `goes_on` is set if another run of the job goes on;
  -- otherwise the job goes to the front of its line. Returns false when it has no rate.
  function made.refused(record, job, lane, text, wait, goes_on)
    local gates, name = gates_of(text, lane)
    local shut = shut_rates(gates, wait)
    if shut and not goes_on then to_the_front(record, job, lane, name, shut) end
    return shut ~= nil
  end

  -- Takes a job out of its line; false when it is not there.
  function made.take_out(job, text, lane)
    local _, name = gates_of(text, lane)
    if not quit(name, job) then return false end
    if is_empty(name) then dissolve(name) end
    return true
  end

  -- Takes the first jobs out of a line, at most `most`. None of one that cannot be read: an error is a table without elements.
  function made.take_some(name, most)
    local jobs = redis.pcall('ZRANGE', line_of(name), 0, most - 1)
    for _, job in ipairs(jobs) do quit(name, job) end
    if is_empty(name) then dissolve(name) end
    return jobs
  end

  -- Which of the keys that a job needs cannot be used; nil when all can.
  function made.damage(text, lane)
    local gates, name = gates_of(text, lane)
    local needed = {{line_of(name), 'zset'}, {K.lines, 'hash'}, {K.alarms, 'zset'}}
    for _, gate in ipairs(gates) do
      needed[#needed + 1] = {slots_of(gate), 'zset'}
      needed[#needed + 1] = {wait_of(gate.id), 'zset'}
      needed[#needed + 1] = {rate_of(gate), 'string'}
    end
    for _, one in ipairs(needed) do
      local kind = redis.call('TYPE', one[1]).ok
      if kind ~= 'none' and kind ~= one[2] then
        return one[1] .. ' is a ' .. kind .. ' and should be a ' .. one[2] .. ': rename or delete it'
      end
    end
  end

  -- Whether the job holds a slot of this gate: it is in a lane, and its entry is there.
  local function holds(job, id)
    local known = redis.pcall('HMGET', record_of(job), F.place, F.gates, F.lane)
    local at, entry = split(known[1])
    if not known[2] or at ~= QUARANTINE and not RANK[at] then return false end
    for _, gate in ipairs((gates_of(known[2], home_of(known[1], known[3])))) do
      if gate.id == id then return #redis.pcall('XRANGE', K[at], entry, entry) == 1 end
    end
    return false
  end

  -- Takes out of the slots of a gate the jobs that do not hold one, among the first `most`. Returns how many. None of a gate
  -- that cannot be read.
  local function clear(id, most)
    local jobs, cleared = redis.pcall('ZRANGE', slots_of({id = id}), 0, most - 1), 0
    for _, job in ipairs(jobs) do
      if not holds(job, id) and free_slot({id = id}, job) then cleared = cleared + 1 end
    end
    return cleared
  end

  -- Puts right the gate at which a line waits. Returns how many slots no job held.
  function made.mend(name, id, most)
    local cleared = clear(id, most)
    redis.call('ZADD', wait_of(id), 'NX', string.format('%.0f', moment()), name)
    made.open(id)
    return cleared
  end

  -- Opens the gates that were freed, and writes how many jobs wait in lines.
  at_end[#at_end + 1] = function()
    for id, number in pairs(freed_slots) do made.open(id, number * MOST) end
    if moves ~= 0 then redis.pcall('HINCRBY', K.counters, 'parked', moves) end
    if moves < 0 and redis.call('EXISTS', K.lines) == 0 then redis.pcall('HDEL', K.counters, 'parked') end
  end

  return made
end
