-- no_jobs: ends `fetch` when all lanes are empty, and lets the executor sleep. Files of this folder stand before the
-- other parts of a script: Lua makes their functions anew with each call, which would take longer than the rest of a
-- call that finds nothing.

-- Most executors read all lanes, and most queues have only the normal one, which `early/paused` knows.
local normal_alone = only_normal and lanes == EVERY_LANE

-- Whether each lane was empty when the script began. False for a lane of a wrong type: reading it then gives the error that
-- the script reports.
local empty, found
if normal_alone then
  empty = {[HIGH] = true, [NORMAL] = redis.pcall('XLEN', K[NORMAL]) == 0, [LOW] = true}
  found = not empty[NORMAL]
else
  empty = {}
  for lane in string.gmatch(lanes, '%S+') do
    empty[lane] = redis.pcall('XLEN', K[lane]) == 0
    found = found or not empty[lane]
  end
end

if not found then
  --@paste fall_asleep
  fall_asleep()
  if plain then return -1 end
  --@paste next_due
  return next_due()
end
