-- Which entries of the DLQ are counted in the index of groups: see `lib/groups`.
--@include group_keys
local function is_after(entry, other)
  local ms, number = string.match(entry, '^(%d+)%-(%d+)$')
  local other_ms, other_number = string.match(other, '^(%d+)%-(%d+)$')
  if ms == other_ms then return tonumber(number) > tonumber(other_number) end
  return tonumber(ms) > tonumber(other_ms)
end

-- The fields of an entry. Of a damaged one, all are texts as well.
local function fields_of(entry)
  local f = {i = '', t = '', e = '', m = '', y = ''}
  for i = 1, #entry[2] - 1, 2 do f[entry[2][i]] = entry[2][i + 1] end
  return f
end

-- How far `index` has come, and its bound.
local function cursor_of_index()
  local at = redis.pcall('HGET', IN_GROUPS, '@')
  if type(at) ~= 'string' then return end
  return string.match(at, '^%d+%-%d+'), string.match(at, ' (%d+%-%d+)$')
end

local function is_counted(entry, given, cursor, bound)
  if given and not (bound and not is_after(entry, bound)) then return true end
  return cursor and not is_after(entry, cursor)
end
