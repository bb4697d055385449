-- Entries of lanes. An entry names its job and, from the second delivery on, which delivery it is.
local function add_entry(lane, job, deliveries)
  if deliveries > 1 then return redis.call('XADD', K[lane], '*', 'i', job, 'n', deliveries) end
  return redis.call('XADD', K[lane], '*', 'i', job)
end
