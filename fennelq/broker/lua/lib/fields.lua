-- Records as tables.

-- A record as a table; false when the key is missing or not a hash.
local function load(record)
  local flat = redis.pcall('HGETALL', record)
  if flat.err or #flat == 0 then return false end
  -- The record of a job has at least four fields. A constructor makes a table with room for them; an empty one would grow
  -- three times.
  local fields = #flat < 8 and {} or {[flat[1]] = flat[2], [flat[3]] = flat[4], [flat[5]] = flat[6], [flat[7]] = flat[8]}
  for i = #flat < 8 and 1 or 9, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end
