-- index: counts the dead jobs that are not in the index of groups, a page per call: those of executors of an earlier
-- release.
--
-- It also finds an index that is wrong, because an executor of an earlier release has removed a dead job, or because a key or
-- an entry was deleted by hand: then the numbers do not add up to the length of the DLQ. Or it meets a value that cannot
-- be read. It deletes the index, and counts all entries anew. Until it has come to the newest entry that there was, that
-- is the bound of its cursor: see `lib/groups`.
--
-- Returns {jobs counted, more 0/1, begun anew 0/1}.
--
--@args prefix, limit
--@include group_keys, group_cursor, begin_group
--@flags allow-oom

-- How many jobs are counted, and in how many groups; nil when the index cannot be read, or is not of one piece.
local function total()
  local flat = redis.pcall('HGETALL', IN_GROUPS)
  if flat.err then return end
  local jobs, groups = 0, 0
  for i = 1, #flat, 2 do
    if flat[i] ~= '@' then jobs, groups = jobs + (tonumber(flat[i + 1]) or 0), groups + 1 end
  end
  if redis.pcall('HLEN', LOOKS) == groups and redis.pcall('HLEN', NEWEST) == groups then return jobs end
end

local function newest_entry() return redis.call('XREVRANGE', K.dead, '+', '-', 'COUNT', 1)[1][1] end

local function write_cursor(cursor, bound)
  local text = cursor .. (bound and ' ' .. bound or '')
  if redis.call('HGET', IN_GROUPS, '@') ~= text then redis.call('HSET', IN_GROUPS, '@', text) end
end

local function begin_anew()
  redis.call('DEL', IN_GROUPS, LOOKS, NEWEST)
  write_cursor('0-0', newest_entry())
  return {0, 1, 1}
end

-- The entries of a page that are not counted, by fingerprint: their number, the first and the last.
local function uncounted(page, cursor, bound)
  local found, order = {}, {}
  for _, entry in ipairs(page) do
    local f = fields_of(entry)
    local group, given = group_of(f.f, f.y, f.t, f.e)
    if not is_counted(entry[1], given, cursor, bound) then
      if not found[group] then
        found[group] = {jobs = 0, first = entry[1], f = f}
        order[#order + 1] = group
      end
      found[group].jobs, found[group].last = found[group].jobs + 1, entry[1]
    end
  end
  return found, order
end

local function is_entry(text) return type(text) == 'string' and string.match(text, '^%d+%-%d+$') ~= nil end

-- Adds entries to a group. Jobs that died later may be counted already. Returns whether what the index shows of the group
-- can be read: if not, its first or its newest entry is unknown, and a search of the group would miss jobs.
local function add(group, new)
  local jobs, f = redis.pcall('HINCRBY', IN_GROUPS, group, new.jobs), new.f
  if jobs == new.jobs then group = begin_group(group, new.jobs, new.first, f.t, f.e, f.m, f.y) end
  local known, last = redis.pcall('HGET', LOOKS, group), redis.pcall('HGET', NEWEST, group)
  local _, look = pcall(cjson.decode, known)
  if type(look) ~= 'table' or not is_entry(look.first) or last and not is_entry(last) then return false end
  if is_after(look.first, new.first) then
    redis.pcall('HSET', LOOKS, group, look_of(new.first, f.t, f.e, f.m, f.y))
  end
  if not last or is_after(new.last, last) then redis.pcall('HSET', NEWEST, group, new.last) end
  return true
end

local length = redis.call('XLEN', K.dead)
if length == 0 then
  if redis.call('EXISTS', IN_GROUPS, LOOKS, NEWEST) > 0 then redis.call('DEL', IN_GROUPS, LOOKS, NEWEST) end
  return {0, 0, 0}
end

-- The numbers may add up although they are wrong: when such an executor has removed a job, and buried another one. So every
-- entry is looked at once.
local jobs, cursor, bound = total(), cursor_of_index()
if jobs == length and not bound and cursor == newest_entry() then return {0, 0, 0} end
if not jobs or jobs > length then return begin_anew() end

local page = redis.pcall('XRANGE', K.dead, cursor and '(' .. cursor or '-', '+', 'COUNT', limit)
if page.err then return begin_anew() end
local found, order = uncounted(page, cursor, bound)
local readable = true
for _, fingerprint in ipairs(order) do readable = add(fingerprint, found[fingerprint]) and readable end
local now_counted, is_last = total(), #page < tonumber(limit)
if not readable or not now_counted or is_last and now_counted ~= length then return begin_anew() end
if is_last then write_cursor(newest_entry()) else write_cursor(page[#page][1], bound) end
return {now_counted - jobs, is_last and 0 or 1, 0}
