-- ends_take: gives a recorder of the history the next entries of `ends`, and keeps that stream alive: it expires `lasts` ms
-- after the latest call. The first call makes it.
--
-- The entries are pending until `ends_done`. With `abandoned`, entries are taken first that another recorder has had for so
-- many ms: it has probably died. `begin` is set when the queue is new, so that its first ends are missed if they were earlier.
--
-- The counters of the queue show how many ends there were, and `ends:read` how many of them recorders have read. When a counter
-- is more than has been read, ends were missed: the stream was cut or has expired, or a worker of an earlier version ended the
-- jobs. Counters are compared when an entry has some, and those of the queue when all entries have been read. Missed ends are
-- added up in `ends:read`, so that no gap is forgotten when a recorder dies. Its field `taken` counts the ends that recorders have
-- taken and not recorded: they are missed when the stream has expired meanwhile.
--
-- Returns {entries (id and text), entries left, ends missed so far, the latest gap: since when (ms), until when (ms), of which
-- statuses, the ends that this call has found to be missed}
--
--@args prefix, recorder, most, lasts, abandoned, begin
--@include now
local READERS, KINDS, REMEMBERED = 'history', {'S', 'N', 'D', 'K'}, 2592000000

local function numbers_of(key)
  local values, found = redis.pcall('HMGET', key, unpack(KINDS)), {}
  for i in ipairs(KINDS) do found[i] = tonumber(values[i]) end
  return found
end

-- Of a queue that is recorded for the first time, earlier ends are not missed.
local known = numbers_of(K.ends_read)
if not next(known) and begin == '' then known = numbers_of(K.counters) end
for i in ipairs(KINDS) do known[i] = known[i] or 0 end

local missed, missed_of = 0, {}

local taken = tonumber((redis.pcall('HGET', K.ends_read, 'taken'))) or 0

-- Takes note of a counter.
local function reach(i, total)
  local gap = total - known[i]
  if gap > 0 then
    missed = missed + gap
    missed_of[#missed_of + 1] = KINDS[i] .. string.format('%.0f', gap)
  end
  known[i] = total
end

local function read_entry(fields)
  local text = fields[2]
  local left = select(2, string.gsub(text, ' [SNDK]', ''))
  taken = taken + left
  for i, kind in ipairs(KINDS) do
    if left == 0 then break end  -- nearly all calls end their jobs alike
    -- Two spaces are before the words of ends that are not counted.
    local number = select(2, string.gsub(text, '[^ ] ' .. kind, ''))
    left, known[i] = left - number, known[i] + number
  end
  for at = 3, #fields, 2 do
    for i, kind in ipairs(KINDS) do
      if fields[at] == kind then reach(i, tonumber(fields[at + 1]) or 0) end
    end
  end
end

local entries = {}

local function add(entry)
  entries[#entries + 1] = {entry[1], entry[2][2] or ''}
end

-- The name of a recorder that has long been silent is removed, so that their number does not grow with every start of one.
local function forget_recorders()
  local consumers = redis.pcall('XINFO', 'CONSUMERS', K.ends, READERS)
  if consumers.err then return end
  for _, flat in ipairs(consumers) do
    local facts = {}
    for i = 1, #flat, 2 do facts[flat[i]] = flat[i + 1] end
    if facts.pending == 0 and facts.idle >= 100 * abandoned and facts.name ~= recorder then
      redis.call('XGROUP', 'DELCONSUMER', K.ends, READERS, facts.name)
    end
  end
end

-- Entries that were cut from the stream while they were pending are lost. Each had one end at least.
local function take_abandoned()
  local claimed = redis.pcall('XAUTOCLAIM', K.ends, READERS, recorder, abandoned, '0-0', 'COUNT', most)
  if claimed.err then return end
  for _, entry in ipairs(claimed[2]) do add(entry) end
  missed = missed + #(claimed[3] or {})
  taken = taken - #(claimed[3] or {})
  forget_recorders()
end

local function read()
  return redis.pcall('XREADGROUP', 'GROUP', READERS, recorder, 'COUNT', most, 'STREAMS', K.ends, '>')
end

if abandoned ~= '' then take_abandoned() end
local reply = #entries == 0 and read()
if reply and reply.err and string.sub(reply.err, 1, 7) == 'NOGROUP' then
  -- With the stream, the list of what recorders had taken is gone. If only the group was deleted, all is taken again.
  if taken > 0 and redis.call('EXISTS', K.ends) == 0 then missed = missed + taken end
  taken = 0
  redis.call('XGROUP', 'CREATE', K.ends, READERS, '0', 'MKSTREAM')
  reply = read()
end
if reply and reply.err then return redis.error_reply(reply.err .. ' (' .. K.ends .. ')') end
redis.call('PEXPIRE', K.ends, lasts)
local is_read = #entries == 0
for _, entry in ipairs(reply and reply[1][2] or {}) do
  add(entry)
  read_entry(entry[2])
end
-- All entries have been read, so all ends that were counted must have been among them.
if is_read and #entries < tonumber(most) then
  for i, total in pairs(numbers_of(K.counters)) do reach(i, total) end
end

local gap = redis.pcall('HMGET', K.ends_read, 'missed', 'since', 'until', 'of', 'at')
if gap.err then
  redis.call('DEL', K.ends_read)
  gap = {}
end
if missed > 0 then
  gap = {string.format('%.0f', (tonumber(gap[1]) or 0) + missed), gap[5] or stamp, stamp, table.concat(missed_of, ' ')}
  redis.call('HSET', K.ends_read, 'missed', gap[1], 'since', gap[2], 'until', gap[3], 'of', gap[4])
end
local marks = {'at', stamp, 'taken', string.format('%.0f', math.max(0, taken))}
for i, kind in ipairs(KINDS) do
  marks[#marks + 1] = kind
  marks[#marks + 1] = string.format('%.0f', known[i])
end
redis.call('HSET', K.ends_read, unpack(marks))
redis.call('PEXPIRE', K.ends_read, REMEMBERED)
return {entries, redis.call('XLEN', K.ends), gap[1] or '0', gap[2] or '0', gap[3] or '0', gap[4] or '', missed}
