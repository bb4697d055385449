-- purge: cancels waiting jobs of a queue, a page per call, and notifies their waiters. Running jobs go on.
--
-- Returns how many were cancelled; 0 when no job waits any more.
--
--@args prefix, queue, record_ttl, failure_ttl, patience, limit
--@include now, keys, fields, outcome/cancelled
--@flags allow-oom

local purged, met = 0, 0
local envelope = '{"cancelled":"purged"}'

local function close(job, place)
  settle_job(job, place, 'K', failure_ttl, envelope)
  purged = purged + 1
end

local function last_delivered(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err or not groups[1] then return '-' end
  for i = 1, #groups[1], 2 do
    if groups[1][i] == 'last-delivered-id' then return '(' .. groups[1][i + 1] end
  end
end

local function purge_lane(lane)
  local stream = K[lane]
  for _, entry in ipairs(redis.call('XRANGE', stream, last_delivered(stream), '+', 'COUNT', limit)) do
    local job = entry[2][2]
    local f = job and load(record_of(job))
    met = met + 1
    redis.call('XDEL', stream, entry[1])
    if f and f[F.place] == lane .. '/' .. entry[1] then close(job, f[F.place]) end
  end
end

local function purge_set(set, name)
  for _, job in ipairs(redis.call('ZRANGE', set, 0, limit - 1)) do
    local f = load(record_of(job))
    met = met + 1
    redis.call('ZREM', set, job)
    if f and f[F.place] == name then close(job, name) end
  end
end

-- When a page contains only entries without a job, the answer 0 would end the caller's loop. So take the next page.
repeat
  met = 0
  for _, lane in ipairs(PRIORITIES) do purge_lane(lane) end
  purge_set(K.scheduled, 'sched')
  purge_set(K.retries, 'retry')
until purged > 0 or met == 0
write_counts()
return purged
