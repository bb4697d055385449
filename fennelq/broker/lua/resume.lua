-- resume: ends the pause of a queue, or only of its consuming (`c`) or enqueuing (`e`), and wakes the executors that have
-- met the pause, a page of them per call. Each of them asks for jobs, and sleeps as usual if there are none. One that
-- misses its message looks by itself after a few seconds.
--
-- As long as the reply says that executors are left, the caller repeats the call with an empty `what`. Such a call
-- changes no pause, so it does not end one that began in the meantime.
--
-- Returns {the value of the key before, or '', whether executors are left 0/1}.
--
--@args prefix, what
--@include pausing, bell
--@flags allow-oom

local PAGE = 100

if what ~= '' then
  local rest = string.gsub(pausing, '[' .. what .. ']', '')
  if rest == '' then
    redis.call('DEL', K.paused)
  else
    redis.call('SET', K.paused, rest .. string.sub(paused, #pausing + 1))
  end
  pausing = rest
end

local function wake_page()
  local executors = redis.pcall('SPOP', K.halted, PAGE)
  if executors.err then return 0 end
  for _, executor in ipairs(executors) do tell(executor, 'look ' .. NORMAL) end
  return redis.call('EXISTS', K.halted)
end

return {paused or '', string.find(pausing, 'c', 1, true) and 0 or wake_page()}
