-- Stops the rates of a job whose run was refused by another service, until `due`. The job goes to the front of its line, unless
-- another run of it `goes_on`. Returns false when the job has no rate.
--@include due, lines
local function stop_rates(record, job, place, due, goes_on)
  local known = redis.call('HMGET', record, F.gates, F.lane)
  return known[1] and lines().refused(record, job, home_of(place, known[2]), known[1], due_at(due) - now, goes_on)
end
