-- Takes a dead job out of the index of groups: see `lib/groups`.
--@include group_keys, group_cursor
-- Nothing is left when the last group goes, unless the index is counted anew.
local function end_group(group, bound)
  redis.pcall('HDEL', IN_GROUPS, group)
  redis.pcall('HDEL', LOOKS, group)
  redis.pcall('HDEL', NEWEST, group)
  if not bound and redis.pcall('HLEN', IN_GROUPS) == 1 and redis.pcall('HEXISTS', IN_GROUPS, '@') == 1 then
    redis.pcall('DEL', IN_GROUPS)
  end
end

-- Subtracts an entry that was removed: {its id, its fields}.
local function leave_group(entry)
  local f = fields_of(entry)
  local group, given = group_of(f.f, f.y, f.t, f.e)
  local cursor, bound = cursor_of_index()
  if not is_counted(entry[1], given, cursor, bound) then return end
  if redis.pcall('HEXISTS', IN_GROUPS, group) ~= 1 then group = OTHERS end
  local jobs = redis.pcall('HINCRBY', IN_GROUPS, group, -1)
  if type(jobs) == 'number' and jobs <= 0 then end_group(group, bound) end
end
