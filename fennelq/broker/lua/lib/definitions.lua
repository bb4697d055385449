-- A definition as a table; an empty one when it cannot be read.
local function decoded(definition)
  local _, fields = pcall(cjson.decode, definition)
  return type(fields) == 'table' and fields or {}
end

-- The part of a definition that decides when it runs. A change of any other part leaves its next tick as it is.
local function times_of(definition)
  local fields, times = decoded(definition), {}
  for _, field in ipairs({'cron', 'every_ms', 'tz', 'start_ms', 'end_ms'}) do times[#times + 1] = tostring(fields[field]) end
  return table.concat(times, '|')
end
