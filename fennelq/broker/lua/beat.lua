-- beat: renews the lease of every job an executor holds, started or not.
--
-- The lease is the idle time of an entry in the pending list. A key with a TTL beside it could get lost, be refused under
-- OOM, or expire for a whole fleet at once. An executor renews with XCLAIM to itself and JUSTID, which does not change the
-- delivery count.
--
-- Lost are entries that the executor holds and that are not pending on it any more. Stranded are entries that have been
-- pending on it for longer than `grace` and that it does not hold, because a reply was lost. This script only reports
-- stranded entries, it does not release them: the reply that delivers one may still be under way.
--
-- Answers {lost: lane, entry, …}, {stranded: lane, entry, …}, the number of jobs in quarantine that no executor has
-- taken, the server's time in ms.
--
--@args prefix, consumer, grace
--@each lane, entry
--@include now
--@flags allow-oom

local PAGE = 1000

local held = {}
for _, lane in ipairs(LANES) do held[lane] = {} end
for i = first, #ARGV, stride do held[ARGV[i]][ARGV[i + 1]] = true end

local lost, stranded, vanished = {}, {}, 0

local function note(list, lane, entry)
  list[#list + 1] = lane
  list[#list + 1] = entry
end

-- XCLAIM removes an entry that was deleted by hand from the pending list instead of claiming it: the next beat reports it
-- as lost.
local function renew(stream, entries)
  for from = 1, #entries, PAGE do
    local words = {}
    for i = from, math.min(from + PAGE - 1, #entries) do words[#words + 1] = entries[i] end
    local asked = #words
    words[asked + 1] = 'JUSTID'
    vanished = vanished + asked - #redis.call('XCLAIM', stream, GROUP, consumer, 0, unpack(words))
  end
end

-- A pending entry is either held by the executor, then it is renewed, or reported as stranded when it is old enough.
local function check_lane(lane)
  local stream, mine, kept, from = K[lane], held[lane], {}, '-'
  while true do
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

local function not_taken(stream)
  local waiting, taken = redis.pcall('XLEN', stream), redis.pcall('XPENDING', stream, GROUP)
  if type(waiting) == 'table' then return 0 end
  return waiting - (taken.err and 0 or taken[1])
end

for _, lane in ipairs(LANES) do check_lane(lane) end
if vanished > 0 then redis.pcall('HINCRBY', K.counters, 'vanished', vanished) end
return {lost, stranded, not_taken(K[QUARANTINE]), now}
