-- enqueue: creates each job once and puts it in its place.
--
-- A job whose record exists is not created again, so a delay() that is repeated after a lost reply is harmless. The
-- idempotency key is taken in the same step. Without `allow-oom`, the server refuses the script when it is over
-- maxmemory: it creates no job, and the caller gets the error.
--
-- Returns, per job: 1 created · 0 the caller's own repeat · 2 another caller's call of the same id ·
-- -1 the id belongs to a different call · a job key: the holder of the idempotency key.
--
--@args prefix
--@each job, lane, due, task, args, carried
--@include now, keys, entries, lane, due, later, idempotency

-- Reads the fields that a job carries, `count` words from `place` on. They are written to the record unchanged, except
-- for those that the server must understand: `expires` is sent as a time from now, and `create` handles the idempotency
-- key, with its `window`.
local function read_carried(fields, place, count)
  local more, n = {}, #fields
  for i = place, place + count - 1, 2 do
    local letter, value = ARGV[i], ARGV[i + 1]
    if letter == F.expires then value = now + value end
    more[letter] = value
    if letter ~= F.idempotency and letter ~= 'window' then
      fields[n + 1], fields[n + 2] = letter, value
      n = n + 2
    end
  end
  return more, n
end

-- A job with this explicit id exists: the reply to the same call is this job, and another call is refused.
local function meet(record, task, args, more)
  if not more[F.nonce] then return 0 end
  local known = redis.pcall('HMGET', record, F.task, F.digest, F.nonce)
  if known.err or known[1] ~= task or known[2] ~= redis.sha1hex(args) then return -1 end
  return known[3] == more[F.nonce] and 0 or 2
end

-- The job that holds the key; nil when this job is gone: then another job may take the key.
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

-- Creates a job that carries further fields, or has to wait.
local function create(job, lane, due, task, args, place, count)
  local record, fields = record_of(job), {F.task, task, F.arguments, args, F.created, stamp}
  local more, n = read_carried(fields, place, count)
  if redis.call('EXISTS', record) == 1 then return meet(record, task, args, more) end
  local function add(letter, value)
    fields[n + 1], fields[n + 2] = letter, value
    n = n + 2
  end
  local key, window = more[F.idempotency], more.window
  if key then
    local holder = holder_of(key)
    if holder then return holder end
    take_key(key, job, window)
    add(F.idempotency, (window and '~' or '=') .. key)
  end
  if key or more[F.kept_at_least] then add(F.ended, '') end
  if more[F.nonce] then add(F.digest, redis.sha1hex(args)) end
  add(F.status, due == '' and 'Q' or 'L')
  if due == '' then
    add(F.place, lane .. '/' .. add_entry(lane, job, 1))
  else
    add(F.place, 'sched')
    later(K.scheduled, job, due_at(due))
  end
  redis.call('HSET', record, unpack(fields))
  if due ~= '' then keep_lane(record, lane) end
  return 1
end

local answers, i = {}, first
while i <= #ARGV do
  local job, lane, due, task, args, count = unpack(ARGV, i, i + 5)
  if count == '' and due == '' then
    local record = record_of(job)
    if redis.call('EXISTS', record) == 1 then
      answers[#answers + 1] = 0
    else
      redis.call('HSET', record, F.task, task, F.arguments, args, F.place, lane .. '/' .. add_entry(lane, job, 1), F.created, stamp)
      answers[#answers + 1] = 1
    end
    i = i + stride
  else
    count = tonumber(count) or 0
    answers[#answers + 1] = create(job, lane, due, task, args, i + stride, count)
    i = i + stride + count
  end
end
return answers
