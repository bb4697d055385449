-- beat: renews the lease of every job an executor holds, started or not.
--
-- The lease is the idle time of an entry in the pending list. A separate key with a TTL could get lost, be refused
-- under OOM, or expire for a whole fleet at once. An executor renews with XCLAIM to itself and JUSTID, which does not
-- change the delivery count.
--
-- An entry is lost when the executor holds it, but it is not pending on this executor any more. An entry is stranded
-- when it has been pending on the executor for longer than `grace`, but the executor does not hold it, because a reply
-- was lost. This script only reports stranded entries. It does not release them, because the reply that delivers one
-- may still be under way.
--
-- It also reports the jobs that the executor holds and that were asked to stop, because the message about this may be lost.
-- The set `stop` names such jobs. It is only a hint: the record decides, and jobs that do not run any more are removed.
--
-- Returns {lost: lane, entry, …}, {stranded: lane, entry, …}, the number of jobs in quarantine that no executor has
-- taken and that may start, the server's time in ms, {asked to stop: lane, entry, why, …}.
--
--@args prefix, consumer, grace
--@each lane, entry
--@include now, keys, quarantine
--@flags allow-oom

local PAGE = 1000

local held = {}
for _, lane in ipairs(LANES) do held[lane] = {} end
for i = first, #ARGV, stride do held[ARGV[i]][ARGV[i + 1]] = true end

local lost, stranded, stopping, vanished = {}, {}, {}, 0

local function note(list, lane, entry)
  list[#list + 1] = lane
  list[#list + 1] = entry
end

-- XCLAIM does not claim an entry that was deleted by hand, but removes it from the pending list: the next beat reports
-- it as lost.
local function renew(stream, entries)
  for from = 1, #entries, PAGE do
    local words = {}
    for i = from, math.min(from + PAGE - 1, #entries) do words[#words + 1] = entries[i] end
    local asked = #words
    words[asked + 1] = 'JUSTID'
    vanished = vanished + asked - #redis.call('XCLAIM', stream, GROUP, consumer, 0, unpack(words))
  end
end

-- The executor holds a pending entry: then it is renewed. Or it does not: then the entry is reported as stranded when
-- it is old enough. A lane that has had no job does not exist, and is not asked.
local function check_lane(lane)
  local stream, mine, kept, from = K[lane], held[lane], {}, '-'
  while redis.call('EXISTS', stream) == 1 do
    local page = redis.pcall('XPENDING', stream, GROUP, from, '+', PAGE, consumer)
    if page.err then break end
    for _, pending in ipairs(page) do
      if mine[pending[1]] then
        kept[#kept + 1] = pending[1]
        mine[pending[1]] = nil
      elseif pending[3] >= tonumber(grace) then
        note(stranded, lane, pending[1])
      end
    end
    if #page < PAGE then break end
    from = '(' .. page[#page][1]
  end
  for entry in pairs(mine) do note(lost, lane, entry) end
  renew(stream, kept)
end

local function note_stopping(place, why)
  local lane, entry = split(place)
  if held[lane] and held[lane][entry] then
    note(stopping, lane, entry)
    stopping[#stopping + 1] = why
  end
end

-- When more jobs than a page were asked to stop, each beat looks at a random page of them.
local function look_at_stopping()
  local jobs = redis.pcall('SRANDMEMBER', K.stopping, PAGE)
  if jobs.err then return end
  for _, job in ipairs(jobs) do
    local known = redis.pcall('HMGET', record_of(job), F.status, F.place, F.stopping, F.twin)
    if known.err or known[1] ~= 'X' or not known[3] then
      redis.call('SREM', K.stopping, job)
    else
      note_stopping(known[2], known[3])
      if known[4] then note_stopping(string.match(known[4], '^%S+'), known[3]) end
    end
  end
end

-- Before the lanes: `check_lane` removes from `held` what it finds.
look_at_stopping()
for _, lane in ipairs(LANES) do check_lane(lane) end
if vanished > 0 then redis.pcall('HINCRBY', K.counters, 'vanished', vanished) end
return {lost, stranded, in_quarantine(), now, stopping}
