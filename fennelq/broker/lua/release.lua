-- release: hands jobs back untouched: neither a try nor a delivery is spent, because nothing was wrong with the job.
--
-- As in finish, XACK is the gate, so whoever lost the job meanwhile changes nothing.
--
-- Answers how many were handed back.
--
--@keys stats, s, s:high, s:low, iso
--@args prefix
--@each lane, entry
--@include now, keys, fields, place
--@flags allow-oom

local released = 0
for i = first, #ARGV, stride do
  local lane, entry = ARGV[i], ARGV[i + 1]
  local stream = prefix .. lane
  local found = redis.call('XRANGE', stream, entry, entry)[1]
  if redis.call('XACK', stream, GROUP, entry) == 1 then
    redis.call('XDEL', stream, entry)
    local job, deliveries = found and found[2][2], found and found[2][4]
    local f = job and load(record_of(job))
    if f and f.p == lane .. '/' .. entry then
      ready(record_of(job), job, lane, deliveries)
      released = released + 1
    end
  end
end
if released > 0 then redis.call('HINCRBY', stats, 'released', released) end
return released
