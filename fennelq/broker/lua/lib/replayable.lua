-- Dead jobs that a replay could put back: for the script that puts them back, and for the one that only asks.
--@include now, record, holder
local NEEDED = {F.task, F.place, F.lane, F.run, F.idempotency, F.gates, F.version, F.replays}

-- The job of a DLQ entry, what its record says, and the entry. Only the job, when no record says that this job died with this entry and
-- can run; nil when the entry is gone. Not the whole record is read, because arguments may be large.
local function dead_job(entry)
  local found = redis.call('XRANGE', K.dead, entry, entry)[1]
  local job = found and found[2][2]
  if not job then return end
  local known, f = redis.pcall('HMGET', record_of(job), unpack(NEEDED)), {}
  for i, letter in ipairs(NEEDED) do f[letter] = known[i] end
  local dead = f[F.place] == 'dlq/' .. entry and f[F.task] and redis.call('HEXISTS', record_of(job), F.arguments) == 1
  return job, dead and f, found
end

-- Whether another job holds this idempotency key. Of the kind `^`, an older call must not run after a newer one that has not
-- ended. A key with its own window is not taken again, so it matters only when it is a `new` one.
local function is_taken(job, key, new)
  local kind, name = string.match(key or '', '^([=<>^~])(.+)$')
  if not kind or kind == '~' and not new then return false end
  local holder, known = holder_of(name)
  return holder and holder ~= job and (known.holds or kind == '^' and known[F.status] == 'X')
end

-- The fields that a call changes, `count` words from `place` on: letters and values. An empty value removes the field.
local function read_changes(place, count)
  local changes = {}
  for i = place, place + count - 1, 2 do changes[ARGV[i]] = ARGV[i + 1] end
  return changes
end
