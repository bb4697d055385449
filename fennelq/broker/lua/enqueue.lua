-- enqueue: creates each job once and puts it in its place.
--
-- A job whose record exists is not made again, so a delay() that is repeated after a lost reply is harmless. The
-- idempotency key is taken in the same step. No `allow-oom`: over maxmemory nothing is created, and the caller is told.
--
-- Answers, per job: 1 created · 0 the caller's own repeat · 2 another caller's call of the same id ·
-- -1 the id belongs to a different call · a job key: the holder of the idempotency key.
--
--@keys sched, s, s:high, s:low
--@args prefix
--@each job, lane, due, task, args, carried
--@include now, keys, place, later

-- What else the job carries: the letters in their order, and their values. `carried` is how many words that takes; the
-- words follow it. Nothing for most jobs.
local function carried_at(place)
  if ARGV[place] == '' then return nil, place + 1 end
  local after = place + 1 + tonumber(ARGV[place])
  local more = {}
  for i = place + 1, after - 1, 2 do
    more[#more + 1] = ARGV[i]
    more[ARGV[i]] = ARGV[i + 1]
  end
  return more, after
end

-- The same explicit id again: the same call is answered with the job, another call is refused.
local function meet(record, task, args, more)
  if not more or not more.u then return 0 end
  local known = redis.pcall('HMGET', record, 't', 'h', 'u')
  if known.err or known[1] ~= task or known[2] ~= redis.sha1hex(args) then return -1 end
  return known[3] == more.u and 0 or 2
end

-- The job that holds the key; nil when the holder is gone: then the key is there to be taken.
local function holder_of(name)
  local job = named_by(name)
  return job and redis.call('EXISTS', record_of(job)) == 1 and job or nil
end

local function take_key(name, job, window)
  if window then
    redis.call('SET', idem_of(name), job, 'PX', window)
  else
    redis.call('SET', idem_of(name), job)
  end
end

-- Appends what this job carries to the fields that all jobs have. Fields are written as they come, but for the few that
-- are handled by name here.
local function with_carried(fields, args, more)
  if not more then return fields end
  local function add(letter, value)
    fields[#fields + 1] = letter
    fields[#fields + 1] = value
  end
  for _, letter in ipairs(more) do
    if letter == 'E' then
      add('E', now + more.E)
    elseif letter == 'k' then
      add('k', (more.window and '~' or '=') .. more.k)
    elseif letter ~= 'window' then
      add(letter, more[letter])
    end
  end
  if more.k or more.L then add(MARK, '') end
  if more.u then add('h', redis.sha1hex(args)) end
  return fields
end

local function create(job, lane, due, task, args, more)
  local record = record_of(job)
  if redis.call('EXISTS', record) == 1 then return meet(record, task, args, more) end
  if more and more.k then
    local holder = holder_of(more.k)
    if holder then return holder end
    take_key(more.k, job, more.window)
  end
  if due ~= '' then
    later(sched, job, due_at(due))
    redis.call('HSET', record, unpack(with_carried({'t', task, 'a', args, 's', 'L', 'p', 'sched', 'c', stamp}, args, more)))
    keep_lane(record, lane)
  else
    local place = lane .. '/' .. add_entry(lane, job, 1)
    if more then
      redis.call('HSET', record, unpack(with_carried({'t', task, 'a', args, 's', 'Q', 'p', place, 'c', stamp}, args, more)))
    else
      redis.call('HSET', record, 't', task, 'a', args, 'p', place, 'c', stamp)
    end
  end
  return 1
end

local answers, i = {}, first
while i <= #ARGV do
  local more, after = carried_at(i + stride - 1)
  answers[#answers + 1] = create(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], more)
  i = after
end
return answers
