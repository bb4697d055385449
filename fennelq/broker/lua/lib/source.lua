-- The source of a schedule: 'runtime', or 'code:' and the service that declares it. A fennelq that did not have
-- services wrote 'code'. A worker of such a version that still runs removes only schedules with exactly this source.
local LEGACY, CODE = 'code', 'code:'

local function service_of(source)
  return source and string.sub(source, 1, #CODE) == CODE and string.sub(source, #CODE + 1) or nil
end

local function is_of_code(source) return source == LEGACY or service_of(source) ~= nil end
