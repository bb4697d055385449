-- purge: cancels waiting jobs of a queue, a page per call, and notifies their waiters. Running jobs go on.
--
-- Returns how many were cancelled; 0 when no job waits any more.
--
--@args prefix, queue, record_ttl, failure_ttl, patience, limit
--@include now, keys, fields, delivered, taken, lines, twins, settle
--@flags allow-oom

local purged, met = 0, 0
local envelope = '{"cancelled":"purged"}'

local function close(job, place)
  settle_job(job, place, 'K', failure_ttl, envelope)
  purged = purged + 1
end

local function purge_entry(lane, entry)
  local job, place = entry[2][2], lane .. '/' .. entry[1]
  local f = load(record_of(job))
  if f and is_taken(f, place) then return end
  met = met + 1
  redis.call('XDEL', K[lane], entry[1])
  if f and f[F.place] == place then
    close(job, place)
  elseif f then
    twins().drop(record_of(job), job, place, 'dropped')
  end
end

-- If the group was lost, jobs that run may be among the first entries, and are passed over.
local function purge_lane(lane)
  local from, before = after_delivered(K[lane]), met
  repeat
    local page = redis.call('XRANGE', K[lane], from, '+', 'COUNT', limit)
    for _, entry in ipairs(page) do
      purge_entry(lane, entry)
      from = '(' .. entry[1]
    end
  until met > before or #page < tonumber(limit)
end

local function purge_set(set, name)
  for _, job in ipairs(redis.call('ZRANGE', set, 0, limit - 1)) do
    local f = load(record_of(job))
    met = met + 1
    redis.call('ZREM', set, job)
    if f and f[F.place] == name then close(job, name) end
  end
end

-- The lines first: a job that is taken out of a lane would let in the next of its line.
local function purge_lines()
  local page = redis.pcall('HSCAN', K.lines, '0', 'COUNT', limit)
  if page.err then return end
  for i = 1, #page[2], 2 do
    if met >= tonumber(limit) then return end
    local name = page[2][i]
    for _, job in ipairs(lines().take_some(name, limit - met)) do
      local f = load(record_of(job))
      met = met + 1
      if f and f[F.place] == 'line' then close(job, 'line') end
    end
  end
end

-- When a page contains only entries without a job, the answer 0 would end the caller's loop. So take the next page.
repeat
  met = 0
  purge_lines()
  if met == 0 then for _, lane in ipairs(PRIORITIES) do purge_lane(lane) end end
  purge_set(K.scheduled, 'sched')
  purge_set(K.retries, 'retry')
until purged > 0 or met == 0
wake_sleepers()
write_counts()
return purged
