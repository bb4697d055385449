-- beat: renews the lease of every job an executor holds, started or not.
--
-- The lease is the idle time of an entry in the pending list, so there is no second truth that could be lost, refused
-- under OOM or expire for a whole fleet at once. Renewing is XCLAIM to oneself with JUSTID, which leaves the delivery
-- count alone. The answer names what was lost (held here, but no longer ours) and what is stranded (ours, idle for longer
-- than `grace`, but unknown here: a reply was lost). It only names them: a reply that is under way may yet bring one.
--
-- Answers {lost: lane, entry, …}, {stranded: lane, entry, …}, jobs in quarantine that nobody has taken, the server's
-- time in ms.
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

-- An entry that somebody deleted is not claimed but leaves the pending list: the next beat finds it lost.
local function renew(stream, entries)
  for from = 1, #entries, PAGE do
    local words = {}
    for i = from, math.min(from + PAGE - 1, #entries) do words[#words + 1] = entries[i] end
    local asked = #words
    words[asked + 1] = 'JUSTID'
    vanished = vanished + asked - #redis.call('XCLAIM', stream, GROUP, consumer, 0, unpack(words))
  end
end

-- One lane: what is pending here is either held, and renewed, or stranded once it is old enough.
local function look(lane)
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

for _, lane in ipairs(LANES) do look(lane) end
if vanished > 0 then redis.pcall('HINCRBY', K.counters, 'vanished', vanished) end
return {lost, stranded, not_taken(K[QUARANTINE]), now}
