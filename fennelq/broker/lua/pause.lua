-- pause: pauses the consuming of a queue (`c`: executors start no jobs), its enqueuing (`e`: callers create no jobs), or
-- both, in addition to what is paused already. Nothing starts after this script, because `fetch` reads the key first.
--
-- The names of the executors that sleep move to the set `halted`, so that no new job wakes them in vain.
--
-- A further pause keeps the time of the first one; who and why are those of the latest.
--
-- Returns the new value of the key.
--
--@args prefix, what, who, why
--@include now, pausing, sleepers
--@flags allow-oom

-- A set of a wrong type is left alone: an executor that is woken in vain starts nothing either.
local function halt(sleepers)
  local moved = redis.pcall('SUNIONSTORE', K.halted, K.halted, sleepers)
  if type(moved) == 'number' then redis.call('DEL', sleepers) end
end

local function letter(one) return string.find(pausing .. what, one, 1, true) and one or '' end

local since = pausing ~= '' and string.match(paused, '^%l+\n[^\n]*\n(%d+)') or stamp
local value = table.concat({letter('c') .. letter('e'), who, since, why}, '\n')
redis.call('SET', K.paused, value)
if letter('c') ~= '' then
  halt(K.sleepers)
  for _, lane in ipairs(PRIORITIES) do halt(sleepers_of(lane)) end
end
return value
