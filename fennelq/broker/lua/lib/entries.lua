-- Entries of lanes. An entry has the job and, from the second delivery on, the number of the delivery.
--@include wake
local function add_entry(lane, job, deliveries)
  added[lane] = true
  if deliveries > 1 then return redis.call('XADD', K[lane], '*', 'i', job, 'n', deliveries) end
  return redis.call('XADD', K[lane], '*', 'i', job)
end
