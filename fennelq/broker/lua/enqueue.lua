-- enqueue: creates each job once and puts it in its place.
--
-- A job whose record exists is not made again, so a delay() that is repeated after a lost reply is harmless. The
-- idempotency key is taken in the same step. No `allow-oom`: over maxmemory nothing is created, and the caller is told.
--
-- Answers, per job: 1 created · 0 the caller's own repeat · 2 another caller's call of the same id ·
-- -1 the id belongs to a different call · a job key: the holder of the idempotency key.
--
--@args prefix
--@each job, lane, due, task, args, extra
--@include now, keys, entries, lane, due, later, idempotency

-- The same explicit id again: the same call is answered with the job, another call is refused.
local function meet(record, task, args, more)
  if not more or not more.u then return 0 end
  local known = redis.pcall('HMGET', record, F.task, F.digest, F.nonce)
  if known.err or known[1] ~= task or known[2] ~= redis.sha1hex(args) then return -1 end
  return known[3] == more.u and 0 or 2
end

-- The job that holds the key; nil when the holder is gone: then the key is there to be taken.
local function holder_of(name)
  local job = named_by(name)
  return job and redis.call('EXISTS', record_of(job)) == 1 and job or nil
end

local function take_key(name, job, window)
  if window > 0 then
    redis.call('SET', idem_of(name), job, 'PX', window)
  else
    redis.call('SET', idem_of(name), job)
  end
end

-- Fields that most jobs do not have, appended to those that all have.
local function with_extras(fields, args, more)
  if not more then return fields end
  local function add(name, value)
    if value then
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
  end
  add(F.options, more.o)
  add(F.expires, more.x and now + more.x)
  add(F.idempotency, more.k and ((more.w > 0 and '~' or '=') .. more.k))
  add(F.max_deliveries, more.d)
  add(F.kept_at_least, more.l)
  add(F.ended, (more.k or more.l) and '')
  add(F.nonce, more.u)
  add(F.digest, more.u and redis.sha1hex(args))
  return fields
end

local function create(job, lane, due, task, args, extra)
  local record = record_of(job)
  local more = extra ~= '' and cjson.decode(extra) or nil
  if redis.call('EXISTS', record) == 1 then return meet(record, task, args, more) end
  if more and more.k then
    local holder = holder_of(more.k)
    if holder then return holder end
    take_key(more.k, job, more.w)
  end
  if due ~= '' then
    later(K.scheduled, job, due_at(due))
    redis.call('HSET', record, unpack(with_extras({F.task, task, F.arguments, args, F.status, 'L', F.place, 'sched', F.created, stamp}, args, more)))
    keep_lane(record, lane)
  else
    local place = lane .. '/' .. add_entry(lane, job, 1)
    if more then
      redis.call('HSET', record, unpack(with_extras({F.task, task, F.arguments, args, F.status, 'Q', F.place, place, F.created, stamp}, args, more)))
    else
      redis.call('HSET', record, F.task, task, F.arguments, args, F.place, place, F.created, stamp)
    end
  end
  return 1
end

local answers = {}
for i = first, #ARGV, stride do
  answers[#answers + 1] = create(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5])
end
return answers
