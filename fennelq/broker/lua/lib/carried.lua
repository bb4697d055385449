-- Creates a job that carries further fields, or has to wait: see `enqueue`.
--@include now, keys, lane, due, later, entries, lines, idempotency, duplicates, room

-- Reads the fields that a job carries, `count` words from `place` on. They are written to the record unchanged, except
-- for those that the server must understand: `expires` is sent as a time from now, and `create` handles the idempotency
-- key, and the values whose names are longer than a letter. These say how long the key is held, and what a duplicate does.
local function read_carried(fields, place, count)
  local more, n = {}, #fields
  for i = place, place + count - 1, 2 do
    local letter, value = ARGV[i], ARGV[i + 1]
    if letter == F.expires then value = now + value end
    more[letter] = value
    if #letter == 1 and letter ~= F.idempotency then
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

local function take_key(name, job, window)
  if window then
    redis.call('SET', idem_of(name), job, 'PX', window)
  else
    redis.call('SET', idem_of(name), job)
  end
end

-- Puts a job into its lane, or into the line before its gates. A job whose gates cannot be read goes to its lane: its start
-- finds out what is wrong with them.
local function place_now(job, lane, gates)
  if gates then
    local ok, place = pcall(lines().enter, job, lane, gates)
    if ok then return place end
  end
  return lane .. '/' .. add_entry(lane, job, 1)
end

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
    if not duplicate_of then make_duplicate_of() end
    local holder = duplicate_of(key, job, args, due, more)
    if holder then return holder end
  end
  if refusal and not more[F.kept_at_least] then return refusal end
  if room and due == '' then
    if room <= 0 and not (make_room and make_room()) then return {most - room} end
    room = room - 1
  end
  if key then
    take_key(key, job, window)
    add(F.idempotency, (more.held or window and '~' or '=') .. key)
    if more.wait then add(F.due_by, more.max_wait and string.format('%.0f', now + more.max_wait) or '') end
  end
  if key or more[F.kept_at_least] or more[F.gates] then add(F.ended, '') end
  if more[F.gates] or more.held then add(F.version, '2') end
  if more[F.nonce] then add(F.digest, redis.sha1hex(args)) end
  add(F.status, due == '' and 'Q' or 'L')
  local place = 'sched'
  if due == '' then
    place = place_now(job, lane, more[F.gates])
  else
    later(K.scheduled, job, due_at(due))
  end
  add(F.place, place)
  redis.call('HSET', record, unpack(fields))
  if not split(place) then keep_lane(record, lane) end
  return 1
end
