-- nothing_due: ends `promote` when no job is due. Most queues have none of these sets, and one command finds that out.
if redis.pcall('EXISTS', K.scheduled, K.retries, K.alarms) == 0 then return {0, -1} end
do
  --@paste next_due
  local wait = next_due()
  if wait ~= 0 then return {0, wait} end
end
