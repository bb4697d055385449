-- no_jobs: ends `fetch` when all lanes are empty, and lets the executor sleep. Files of this folder stand before the
-- other parts of a script: Lua makes their functions anew with each call, which would take longer than the rest of a
-- call that finds nothing.
--@include next_due, bell

-- If the executor asks for it (`sleeps`), its name enters the set from which `lib/ring` takes the executor to wake.
local function fall_asleep()
  if sleeps == 'all' then
    redis.pcall('SADD', K.sleepers, consumer)
  elseif sleeps == 'some' then
    for lane in string.gmatch(lanes, '%S+') do redis.pcall('SADD', sleepers_of(lane), consumer) end
  end
end

-- How many entries each lane had when the script began. Asked once per lane: every command takes a few microseconds.
local lengths = {}

-- False for a lane of a wrong type too: reading it then gives the error that the script reports.
local function is_empty(lane)
  lengths[lane] = lengths[lane] or redis.pcall('XLEN', K[lane])
  return lengths[lane] == 0
end

local function any_entries()
  for lane in string.gmatch(lanes, '%S+') do
    if not is_empty(lane) then return true end
  end
  return false
end

if not any_entries() then
  fall_asleep()
  return {{}, 1, (next_due()), {}, '', {}}
end
