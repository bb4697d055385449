-- running: a page of the jobs that executors have taken and not settled, lane by lane, the first taken first.
--
-- A job is listed when its record names the entry, as its place or as its second copy: other entries are what is left of
-- jobs that have ended, and recovery removes them. The owner and the start of a copy are those of this copy.
--
-- `cursor` is '' for the first page, and then that of the page before. A page visits at most `limit` entries, because each
-- costs two commands.
--
-- A lane or a record of a wrong type is passed over. Any other error, such as a missing permission, is the reply.
--
-- Returns {now, the cursor of the next page or '' at the end, 11 values per job: lane, entry, consumer, ms since its lease
-- was renewed, job, task, start (server ms) or '', tries, progress, why it was asked to stop, 1 when it is the second copy}.
--
--@args prefix, cursor, limit
--@include now, keys, run, refusal
--@flags no-writes

local rows, left, next_cursor, refusal = {}, tonumber(limit), '', nil
local from_lane, from_entry = split(cursor)

-- When this copy of a job was started; nil when the record names another place, and '' when it was taken and not started.
local function start_of(f, place)
  if f.place == place then
    return f.status == 'X' and select(2, run_of(f.run)) or '', 0
  end
  local token, begun = string.match(f.twin or '', '^(%S+) .* (%d+)$')
  if (token or f.twin) == place then return begun or '', 1 end
end

-- The reply of a command; empty when the key is of a wrong type, or not there.
local function ask(...)
  local reply = redis.pcall(...)
  if not reply.err then return reply end
  local word = string.match(reply.err, '^%S+')
  if word ~= 'WRONGTYPE' and word ~= 'NOGROUP' then refusal = reply.err end
  return {}
end

local function add(lane, entry, consumer, idle)
  local found = ask('XRANGE', K[lane], entry, entry)[1]
  local job = found and found[2][2]
  local known = job and ask('HMGET', record_of(job), F.place, F.status, F.run, F.twin, F.task, F.tries, F.progress, F.stopping)
  if not known then return end
  local f = {place = known[1], status = known[2], run = known[3], twin = known[4]}
  local start, copy = start_of(f, lane .. '/' .. entry)
  if not start then return end
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4], rows[n + 5] = lane, entry, consumer, idle, job
  rows[n + 6], rows[n + 7], rows[n + 8] = known[5] or '', start, known[6] or '0'
  rows[n + 9], rows[n + 10], rows[n + 11] = known[7] or '', known[8] or '', copy
end

for _, lane in ipairs(LANES) do
  if left > 0 and (not from_lane or lane == from_lane) then
    local page = ask('XPENDING', K[lane], GROUP, from_lane and '(' .. from_entry or '-', '+', left)
    for _, one in ipairs(page) do add(lane, one[1], one[2], one[3]) end
    left, from_lane = left - #page, nil
    if left == 0 then next_cursor = lane .. '/' .. page[#page][1] end
  end
end
if refusal then return refusal_of(refusal) end
return {now, next_cursor, rows}
