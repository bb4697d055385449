-- declare: updates the schedules of one service in Redis to those that its code declares, a page per call.
--
-- Schedules belong to the service that declares them: only that service changes or removes them. While another service
-- that declares a name is active, this script leaves the schedule to it and notes the name in `cron:denied`; executors
-- declare such names `again` from time to time.
--
-- The digest of everything that the code declares identifies its version. During a deploy two versions may run at once.
-- The holder is the version that declared for the first time most recently. A version that has declared before becomes
-- the holder again only when no executor of the holder has called `look` for `patience` (a rollback).
--
-- The first call of a version opens a round. Its pages follow in order; `at` is the position of a page. The script
-- stores how far the round has come. So any executor of this version can continue a round, and a page that arrives
-- twice or out of order writes nothing. When another version becomes the holder, the script refuses further pages of
-- this one. The round removes the schedules of earlier rounds, a page per call as well, only after all `total`
-- schedules are declared: a round that was interrupted has removed nothing. A paused schedule stays paused. Schedules
-- made at run time are left alone, unless the code now declares their name.
--
-- A fennelq that did not have services stored all schedules of the code as one set. A service that declares one of
-- them, with the same task, takes the set over and removes the schedules that its code does not declare any more. It
-- then writes its digest to `cron:meta` as the version that declared last, so that workers with the older fennelq
-- change nothing during the deploy.
--
-- Returns {'held', 0, {}} when a newer version is the holder · {'open', position of the next page, names of the
-- removed} · {'done', total, names of the removed}.
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

-- Makes this version the holder for workers with a fennelq that does not have services.
local function hold_legacy()
  redis.call('HSET', K.meta, 'digest', digest, 'heard', stamp)
  redis.call('ZADD', K.versions, 'NX', stamp, digest)
  redis.call('ZREMRANGEBYRANK', K.versions, 0, -VERSIONS - 1)
  current = digest
end

local function open()
  redis.call('ZADD', K.known, 'NX', stamp, digest .. ' ' .. service)
  redis.call('ZREMRANGEBYRANK', K.known, 0, -KNOWN - 1)
  if holder == current then hold_legacy() end
  round, reached = redis.call('HINCRBY', K.sources, of('round'), 1), '0'
  set('digest', digest)
  set('at', reached)
  set('legacy', current)
  redis.call('DEL', denied_to(service))
end

-- Takes over the set that a fennelq without services has declared. The task shows whether the set belongs to this
-- service: two services may use one name for different tasks.
local function adopts(definition, other)
  if decoded(definition).task ~= decoded(other).task then return current == digest end
  if current ~= digest then
    if redis.call('ZSCORE', K.versions, digest) and is_active(LEGACY) then return false end
    hold_legacy()
    set('legacy', current)
  end
  set('sweep', '0')
  return true
end

-- Whether the schedule belongs to another service that is active.
local function is_kept(definition, source, other)
  if not is_of_code(source) or source == mine then return false end
  if source == LEGACY and adopts(definition, other) or not is_active(source) then
    declares_anew(source)
    return false
  end
  return true
end

local changed = false
local function declare(name, definition, next_due)
  local state = redis.call('HMGET', state_of(name), 'source', 'definition')
  if is_kept(definition, state[1], state[2]) then
    -- It is not a conflict when two services declare the same schedule: '' stops executors from logging one.
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

-- Removes a page of the schedules of earlier rounds; true when none is left.
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

-- Removes schedules of the set that was taken over, which the code does not declare any more; true when all names have
-- been visited.
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
  if changed then announce_schedules() end
  if not redis.call('HGET', K.sources, of('sweep')) then return {'done', tonumber(total), removed} end
  -- Declaring `again` has taken over a set of a fennelq without services: sweep it.
  reached = total
  set('at', reached)
end
if reached ~= total then return {'open', tonumber(reached), removed} end
if not (sweep_own() and sweep_legacy()) then return {'open', tonumber(total), removed} end
set('at', 'done')
announce_schedules()
return {'done', tonumber(total), removed}
