-- How many jobs in quarantine no executor has taken. While a person has paused the queue it is 0: these jobs may not start,
-- and supervisors would start an executor for them again and again. Every read is a pcall, because the callers have to go on
-- whatever the types of these keys are.
local function in_quarantine()
  local stream = K[QUARANTINE]
  local waiting = redis.pcall('XLEN', stream)
  if type(waiting) == 'table' or waiting == 0 then return 0 end
  local taken, paused = redis.pcall('XPENDING', stream, GROUP), redis.pcall('GET', K.paused)
  if type(paused) == 'string' and string.match(paused .. '\n', '^ce?\n') then return 0 end
  return waiting - (taken.err and 0 or taken[1])
end
