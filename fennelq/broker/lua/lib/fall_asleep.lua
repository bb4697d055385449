-- The executor goes to sleep, if it asks for that (`sleeps`): its name enters the set from which `lib/ring` takes the executor to
-- wake.
--@include sleepers
local function fall_asleep()
  if sleeps == 'all' then
    redis.pcall('SADD', K.sleepers, consumer)
  elseif sleeps == 'some' then
    for lane in string.gmatch(lanes, '%S+') do redis.pcall('SADD', sleepers_of(lane), consumer) end
  end
end
