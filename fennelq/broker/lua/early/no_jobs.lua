-- no_jobs: ends `fetch` when all lanes are empty, and lets the executor sleep. Files of this folder stand before the
-- other parts of a script: Lua makes their functions anew with each call, which would take longer than the rest of a
-- call that finds nothing.
--@include sleepers

-- If the executor asks for it (`sleeps`), its name enters the set from which `lib/ring` takes the executor to wake.
local function fall_asleep()
  if sleeps == 'all' then
    redis.pcall('SADD', K.sleepers, consumer)
  elseif sleeps == 'some' then
    for lane in string.gmatch(lanes, '%S+') do redis.pcall('SADD', sleepers_of(lane), consumer) end
  end
end

-- Whether each lane was empty when the script began. False for a lane of a wrong type: reading it then gives the error that
-- the script reports. `early/paused` knows whether there are other lanes than the normal one.
local empty, found = {}, false
for lane in string.gmatch(lanes, '%S+') do
  empty[lane] = only_normal and (lane == HIGH or lane == LOW) or redis.pcall('XLEN', K[lane]) == 0
  found = found or not empty[lane]
end

if not found then
  fall_asleep()
  if plain then return -1 end
  --@paste next_due
  return next_due()
end
