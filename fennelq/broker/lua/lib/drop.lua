-- Drops the oldest job that waits, so that the queue takes a new one. The job is dead, with the reason `dropped`.
--
-- It is of the lowest lane for which a job waits that no executor has taken: the first one in the lane, or that of a line
-- before it, whichever is older. So a flood in a line is dropped before the younger jobs of others. Of LINES lines at most the
-- first jobs are read, once per script, so that a queue with very many lines is not walked. Lines that this script begins
-- itself have younger jobs than those: they are read when the others have none left.
--@include room, keys, fields, delivered, taken, take_out, counts, settle
local LINES, by_rank = 100, PRIORITIES

local function drop(job, f, place)
  local message = 'the queue was full (max_waiting is ' .. most .. '), and this was its oldest job'
  local failure = {type = 'Dropped', message = message, traceback = '', reason = 'dropped', tries = tonumber(f[F.tries]) or 0}
  settle_job(job, place, 'D', failure_ttl, cjson.encode(failure))
  count('displaced')
  return true
end

-- Where the entries begin that no executor has taken, by lane.
local from = {}

-- The first entry of a lane whose job waits, and its record; nil when none does. If the group was lost, the jobs that run are
-- passed over here.
local function first_in(lane)
  from[lane] = from[lane] or after_delivered(K[lane])
  for _ = 1, LINES do
    local entry = redis.pcall('XRANGE', K[lane], from[lane], '+', 'COUNT', 1)[1]
    if not entry then return end
    local job = entry[2][2]
    local f = load(record_of(job))
    if not f or not is_taken(f, lane .. '/' .. entry[1]) then return entry, f end
    from[lane] = '(' .. entry[1]
  end
end

-- An entry that no record names is removed, and makes room too.
local function drop_entry(lane, entry, f)
  local job, place = entry[2][2], lane .. '/' .. entry[1]
  redis.call('XDEL', K[lane], entry[1])
  if f and f[F.place] == place then return drop(job, f, place) end
  if f then twins().drop(record_of(job), job, place, 'dropped') end
  count('dropped')
  return true
end

-- By lane, the lines before it and since when their first jobs have waited, the oldest at the end.
local heads

-- Puts a line into its place. One that is empty or cannot be read is left out.
local function note(name)
  local at = tonumber(redis.pcall('ZRANGE', prefix .. 'line:' .. name, 0, 0, 'WITHSCORES')[2])
  local list = at and heads[string.match(name, '[^@]*$')]
  if not list then return end
  local place = #list
  while place > 0 and list[place].at < at do place = place - 1 end
  table.insert(list, place + 1, {name = name, at = at})
end

local function read_heads()
  heads = {}
  for _, lane in ipairs(by_rank) do heads[lane] = {} end
  for _, name in ipairs(redis.pcall('HRANDFIELD', K.lines, LINES)) do note(name) end
end

-- The line of a lane whose first job has waited longest, and since when in ms. That job may have gone since it was read, and
-- then the line has another place.
local function longest_waiting(lane)
  local list = heads[lane]
  while list[1] do
    local last = table.remove(list)
    note(last.name)
    local now_last = list[#list]
    if now_last and now_last.name == last.name and now_last.at == last.at then return last.name, math.floor(last.at / 1000) end
  end
end

-- Drops the first job of a line. A job without a record is removed, and makes no room: it may not be counted.
local function drop_from_line(name)
  local job = lines().take_some(name, 1)[1]
  local f = job and load(record_of(job))
  return f and f[F.place] == 'line' and drop(job, f, 'line')
end

-- Drops the oldest job that waits in this lane or before it; false when none does.
local function drop_from(lane)
  for _ = 1, LINES do
    local entry, f = first_in(lane)
    local line, since = longest_waiting(lane)
    if not line then return entry and drop_entry(lane, entry, f) end
    local older = not entry or f and since < (tonumber(f[F.created]) or 0)
    if not older then return drop_entry(lane, entry, f) end
    if drop_from_line(line) then return true end
  end
end

local function drop_lowest()
  for rank = #by_rank, 1, -1 do
    if drop_from(by_rank[rank]) then return true end
  end
end

-- The new job is accepted even if there is nothing to drop.
function make_room()
  if heads and drop_lowest() then return true end
  read_heads()
  drop_lowest()
  return true
end
