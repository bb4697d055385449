-- Wakes an executor when a lane has a new entry. A script that adds entries or due times calls `wake_sleepers` at its end,
-- which the loader checks: otherwise the jobs would wait until an executor looks by itself.
--
-- One message per lane is enough. The executor that it wakes takes as many jobs as it has slots, and wakes the next one if
-- it leaves some. So a single job wakes one executor, and a burst as many as it needs.
--
-- `at_end` is what other parts of a script do at its end.
--@include now
local added, soonest, at_end = {}, nil, {}

-- Executors that are busy learn from their next fetch when the next job is due. Most calls wake none, so the functions are
-- made when one is to be woken.
local function wake_sleepers()
  for _, act in ipairs(at_end) do act() end
  if next(added) then
    --@paste ring
    for lane in pairs(added) do ring(lane) end
  end
  if soonest then
    --@paste announce
    tell_one('due ' .. math.max(0, soonest - now))
  end
end
