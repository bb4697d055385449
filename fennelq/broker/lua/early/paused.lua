-- paused: ends `fetch` while a person has paused the queue. The name of an executor that would sleep enters the set
-- `halted` and not those of the sleepers, so that no new job wakes it in vain. `resume` wakes all of this set.

-- Most queues have none of these keys, and one command finds that out: then nothing is paused, nothing is due, and all
-- jobs are in the normal lane.
local only_normal = redis.pcall('EXISTS', K.paused, K.scheduled, K.retries, K.alarms, K[HIGH], K[LOW]) == 0
local plain = only_normal or redis.pcall('EXISTS', K.paused, K.scheduled, K.retries, K.alarms) == 0

if not plain then
  --@paste paused, next_due
  if paused and string.find(paused .. '\n', '^ce?\n') then
    if sleeps ~= '' then redis.pcall('SADD', K.halted, consumer) end
    return next_due()
  end
end
