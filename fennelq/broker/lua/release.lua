-- release: puts jobs back into their lanes. It counts neither a try nor a delivery, because the jobs did not cause it.
--
-- As in finish, XACK decides which caller owns a job, so a caller that has lost the job changes nothing. A job that is
-- stranded again and again, because the reply is lost each time, may itself be the cause: from the tenth time on, a
-- release counts as a delivery.
--
-- `why`: stopped · unstarted (the executor took it, and stopped before the handler began) · stranded. In the last two
-- cases the handler did not begin. Fetch has counted a start nevertheless; `blank_starts` corrects this, so that the
-- job can still expire.
--
-- Returns how many were put back.
--
--@args prefix, why
--@each lane, entry
--@include now, keys, fields, deliveries, ready, run_over, twins
--@flags allow-oom

local STRANDINGS = 10

local function deliveries_after(record, f, deliveries)
  if why ~= 'stranded' then return deliveries end
  local times = (tonumber(f[F.strandings]) or 0) + 1
  redis.call('HSET', record, F.strandings, times)
  return times < STRANDINGS and deliveries or deliveries + 1
end

local function put_back(lane, entry, fields)
  local job, record = fields[2], fields[2] and record_of(fields[2])
  local f = record and load(record)
  local what = why == 'unstarted' and 'stopped' or why
  if f and f[F.twin] and twins().drop(record, job, lane .. '/' .. entry, what) then return 1 end
  if not f or f[F.place] ~= lane .. '/' .. entry then return 0 end
  if why ~= 'stopped' and f[F.status] == 'X' then redis.call('HINCRBY', record, F.blank_starts, 1) end
  ready(record, job, lane, deliveries_after(record, f, deliveries_in(fields)))
  run_over('again', record, job, what)
  return 1
end

local released = 0
for i = first, #ARGV, stride do
  local lane, entry = ARGV[i], ARGV[i + 1]
  local stream = K[lane]
  local found = redis.call('XRANGE', stream, entry, entry)[1]
  if redis.call('XACK', stream, GROUP, entry) == 1 then
    redis.call('XDEL', stream, entry)
    if found then released = released + put_back(lane, entry, found[2]) end
  end
end
if released > 0 then count('released', released) end
wake_sleepers()
write_counts()
return released
