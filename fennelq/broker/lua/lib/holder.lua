-- The job that holds an idempotency key.
--
-- The key names the job that has taken it last. It is deleted with the record of this job, and not when it becomes free:
-- the state of the job decides whether it still holds the key. So whichever script changes the state frees the key, in the
-- same step, and none can forget to do it. The first letter of the field `idempotency` says in which states:
--
--     =  as long as the record exists
--     ~  as long as the record exists; the key itself expires after its window
--     <  until the job begins
--     >  until it has ended
--     ^  while it waits, also for its next try
--
-- A waiting job that has expired, or was asked to stop, will not run any more. It holds no key of the last three kinds.
--@include now, record, begun, idempotency

-- The states in which a job of this kind holds its key; nil for all.
local function states_of(kind)
  return ({['<'] = 'QL', ['^'] = 'QLR', ['>'] = 'QLRX'})[kind]
end

local function holds(f, kind)
  local states, status = states_of(kind), f[F.status] or 'Q'
  if not states or status == 'X' and kind == '>' then return true end
  if not string.find(states, status, 1, true) or f[F.stopping] then return false end
  if begun(f) then return kind ~= '<' end
  local expires = tonumber(f[F.expires])
  return not expires or expires > now
end

-- The job that the key names, and what its record says of it; nil when that job is gone, or has another key. Not the whole
-- record is read, because arguments may be large.
local function holder_of(name)
  local job = named_by(name)
  if not job then return end
  local letters = {F.idempotency, F.status, F.place, F.lane, F.run, F.blank_starts, F.stopping, F.expires, F.gates, F.latest_call, F.due_by}
  local known, f = redis.pcall('HMGET', record_of(job), unpack(letters)), {}
  for i, letter in ipairs(letters) do f[letter] = known[i] or nil end
  local kind, own = string.match(f[F.idempotency] or '', '^(.)(.+)$')
  if own ~= name then return end
  f.kind, f.holds = kind, holds(f, kind)
  return job, f
end
