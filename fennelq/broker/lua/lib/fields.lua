-- A record as a table; false when the key is missing or not a hash.
local function load(record)
  local flat = redis.pcall('HGETALL', record)
  if flat.err or #flat == 0 then return false end
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end
