-- declare: makes the schedules of one service in Redis those that its code declares, a page per call.
--
-- Schedules belong to the service that declares them: only that service changes or removes them. A name that another
-- service has declared is left to it while it is there; it is noted in `cron:denied` and declared `again` now and then.
--
-- Each version of the code is known by the digest of all it declares. Two versions may run at once during a deploy: the
-- one that came later holds, and an older one that restarts changes nothing. It takes over again (a rollback) once the
-- later one has not looked for `patience`.
--
-- The first call of a version opens a round. Pages follow in order, and `at` says where a page begins; the script knows
-- how far the round has come, so any executor of this version can go on where another one stopped, and a page that comes
-- twice or out of order writes nothing. Once another version holds, further pages of this one are refused. Only when all
-- `total` schedules are declared does the round remove, a page at a time as well, what belongs to an earlier round: a
-- round that was broken off has removed nothing. New schedules are added, changed ones changed, vanished ones removed.
-- A paused one stays paused; those made at run time are left alone, unless the code now declares their name.
--
-- A fennelq from before there were services wrote all schedules of the code as one set. If this service declares one of
-- them, with the same task, the set is its own: it takes it over and removes what has vanished from it. In `cron:meta` it
-- then follows as the version that came later, so that workers with the older fennelq change nothing during the deploy.
--
-- Answers {'held', 0, {}} when a later version holds · {'open', where the next page begins, names of the removed} ·
-- {'done', total, names of the removed}.
--
--@args prefix, service, digest, patience, total, at
--@each name, definition, next_due
--@include now, schedules
--@flags allow-oom

local VERSIONS, PAGE = 50, 100
local KNOWN = 1000

local mine = CODE .. service
local function of(what) return what .. ':' .. service end
local function set(what, value) redis.call('HSET', K.sources, of(what), value) end

local known = redis.call('HMGET', K.sources, of('digest'), of('heard'), of('legacy'), of('at'), of('round'))
local holder, legacy, reached, round = known[1], known[3], known[4], known[5]
local current = redis.call('HGET', K.meta, 'digest') or ''

-- Towards workers with a fennelq from before there were services.
local function hold_legacy()
  redis.call('HSET', K.meta, 'digest', digest, 'heard', stamp)
  redis.call('ZADD', K.versions, 'NX', stamp, digest)
  redis.call('ZREMRANGEBYRANK', K.versions, 0, -VERSIONS - 1)
  current = digest
end

local function open()
  redis.call('ZADD', K.known, 'NX', stamp, digest .. ' ' .. service)
  redis.call('ZREMRANGEBYRANK', K.known, 0, -KNOWN - 1)
  if holder and holder == current then hold_legacy() end
  round, reached = redis.call('HINCRBY', K.sources, of('round'), 1), '0'
  set('digest', digest)
  set('at', reached)
  set('legacy', current)
  redis.call('DEL', denied_to(service))
end

-- Takes over what a fennelq from before there were services has declared, and is this service's, as the task tells.
local function adopts(definition, other)
  if decoded(definition).task ~= decoded(other).task then return current == digest end
  if current ~= digest then
    if redis.call('ZSCORE', K.versions, digest) and is_there(LEGACY) then return false end
    hold_legacy()
    set('legacy', current)
  end
  set('sweep', '0')
  return true
end

-- Whether the schedule belongs to another service that is there.
local function is_kept(definition, source, other)
  if not is_of_code(source) or source == mine then return false end
  if source == LEGACY and adopts(definition, other) or not is_there(source) then
    declares_anew(source)
    return false
  end
  return true
end

local changed = false
local function declare(name, definition, next_due)
  local state = redis.call('HMGET', state_of(name), 'source', 'definition')
  if is_kept(definition, state[1], state[2]) then
    -- The same schedule, declared twice, is nothing to complain about.
    redis.call('HSET', denied_to(service), name, state[2] == definition and '' or state[1])
    return
  end
  put(name, definition, next_due, mine)
  redis.call('ZADD', schedules_of(service), round, name)
  redis.call('HDEL', denied_to(service), name)
  changed = true
end

local removed = {}
local function forget(name)
  removed[#removed + 1] = name
  remove(name)
end

-- What belongs to an earlier round; true when nothing does any more.
local function sweep_own()
  local page = redis.call('ZRANGEBYSCORE', schedules_of(service), '-inf', '(' .. round, 'LIMIT', 0, PAGE)
  for _, name in ipairs(page) do
    if redis.call('HGET', state_of(name), 'source') == mine then
      forget(name)
    else
      redis.call('ZREM', schedules_of(service), name)
    end
  end
  return #page < PAGE
end

-- What has vanished from the set that was taken over; true when all names have been gone through.
local function sweep_legacy()
  local cursor = redis.call('HGET', K.sources, of('sweep'))
  if not cursor then return true end
  local page = redis.call('SSCAN', K.names, cursor, 'COUNT', PAGE)
  for _, name in ipairs(page[2]) do
    local vanished = redis.call('HGET', state_of(name), 'source') == LEGACY
    if vanished and redis.call('HEXISTS', denied_to(service), name) == 0 then forget(name) end
  end
  set('sweep', page[1])
  if page[1] == '0' then redis.call('HDEL', K.sources, of('sweep')) end
  return page[1] == '0'
end

if holder and holder ~= digest and redis.call('ZSCORE', K.known, digest .. ' ' .. service) and recent(known[2]) then
  return {'held', 0, removed}
end
if holder ~= digest or legacy ~= current then open() end
set('heard', stamp)
set('seen', stamp)

if at == reached or at == 'again' then
  for i = first, #ARGV, stride do declare(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
end
if at == reached then
  reached = string.format('%.0f', at + (#ARGV - first + 1) / stride)
  set('at', reached)
end
if reached == 'done' then
  if changed then tell() end
  if not redis.call('HGET', K.sources, of('sweep')) then return {'done', tonumber(total), removed} end
  -- What was declared again has brought a set from before there were services along.
  reached = total
  set('at', reached)
end
if reached ~= total then return {'open', tonumber(reached), removed} end
if not (sweep_own() and sweep_legacy()) then return {'open', tonumber(total), removed} end
set('at', 'done')
tell()
return {'done', tonumber(total), removed}
