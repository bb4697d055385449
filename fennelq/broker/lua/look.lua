-- look: finds the due schedules and other work on recurring jobs, by the server's clock.
--
-- A tick that is due is either late or missed, and `catchup` treats the two differently. A tick is missed when it
-- became due while no executor ran. To detect this, every look stores `back`: the time by which an executor will look
-- again, which is the next due time, or after `longest`. When an executor that has just started looks after this time,
-- no executor ran in between. Then `awake` is set to now: ticks due before `awake` were missed, later ones are late. An
-- executor that has looked before (`again`) was running in between, even if this look is late. For such an executor,
-- only a minute without any look counts as an outage, for example when a laptop was asleep.
--
-- For two kinds of work the executors take turns, one executor every 200 ms, so that not the whole fleet does it at
-- once: jobs in the outbox that another executor has not handed over, and runs that queue behind an unfinished run,
-- whose state is in another slot.
--
-- Due schedules come in pages, the longest due first. Schedules that an executor cannot claim stay due, because other
-- executors may be able to. It then asks for the next page, which begins after the time and the name of the last
-- schedule of the page before.
--
-- Returns {now, awake, the digest of the holder, ms to the next due time or -1, entries in the outbox, schedules with
-- queued runs, whether it is this executor's turn 0/1, the due schedules, some of the schedules with queued runs, how
-- many schedules of this service belong to another one, whether more are due 0/1, time and name of the last on this
-- page}. A schedule is its name, definition, next, last job, whether that job is still in the outbox, and its queued
-- runs. The digest is '' while this service has something to declare: it has not declared everything, or a fennelq that
-- does not have services has declared since then.
--
--@args prefix, service, version, again, longest, limit, after, after_name
--@include now, cron, service_keys
--@flags allow-oom

local LATE, GONE = 1000, 60000
local TURN = 200
local BYTES = 1048576

-- The fields of a schedule that this script needs, and its row of the reply.
local function described(name)
  local f = redis.call('HMGET', state_of(name), 'definition', 'next', 'last_job', 'paused')
  local job = f[3] or ''
  return f, {name, f[1], f[2], job, redis.call('HEXISTS', K.outbox, job), redis.call('HGET', K.queued, name) or ''}
end

-- How many due schedules come before this page.
local function passed_over()
  if redis.call('ZSCORE', K.due, after_name) == after then return redis.call('ZRANK', K.due, after_name) + 1 end
  return redis.call('ZCOUNT', K.due, '-inf', '(' .. after)
end

local place = passed_over()
local page = redis.call('ZRANGE', K.due, place, place + limit, 'WITHSCORES')
local due, bytes, more, last, last_name = {}, 0, 0, '', ''
for i = 1, #page, 2 do
  local name = page[i]
  if tonumber(page[i + 1]) > now then break end
  if i > 2 * limit or bytes > BYTES then
    more = 1
    break
  end
  local f, row = described(name)
  if f[1] and string.match(f[2] or '', '^%d+$') then
    due[#due + 1] = row
    bytes = bytes + #f[1] + #row[6]
  else
    -- Its state was deleted or is damaged. If it stayed due, executors would find it again with every look.
    redis.call('ZREM', K.due, name)
  end
  last, last_name = page[i + 1], name
end

local head, wait = redis.call('ZRANGEBYSCORE', K.due, '(' .. stamp, '+inf', 'WITHSCORES', 'LIMIT', 0, 1), -1
if head[2] then wait = head[2] - now end

local known = redis.call('HMGET', K.meta, 'digest', 'seen', 'back', 'awake', 'turn')
local seen, back, awake = tonumber(known[2]), tonumber(known[3]), tonumber(known[4])
local broken = not awake or now - seen > GONE or (again == '0' and now > back + LATE)
if broken then awake = now end

-- An executor that gets due schedules claims them, and then looks again.
local pause = #due > 0 and LATE or math.min(tonumber(longest), wait >= 0 and wait or tonumber(longest))
back = math.min(math.max(broken and 0 or back, now + pause), now + GONE)
redis.call('HSET', K.meta, 'seen', stamp, 'back', string.format('%.0f', back), 'awake', string.format('%.0f', awake))
if known[1] == version then redis.call('HSET', K.meta, 'heard', stamp) end

local mine = redis.call('HMGET', K.sources, 'digest:' .. service, 'at:' .. service, 'legacy:' .. service)
local holder = mine[1] or ''
if mine[1] then redis.call('HSET', K.sources, 'seen:' .. service, stamp) end
if holder == version then
  redis.call('HSET', K.sources, 'heard:' .. service, stamp)
  if mine[2] ~= 'done' or mine[3] ~= (known[1] or '') then holder = '' end
end

local handing, queued, turn, waiting = redis.call('HLEN', K.outbox), redis.call('HLEN', K.queued), 0, {}
if handing + queued > 0 and math.abs(now - (tonumber(known[5]) or 0)) >= TURN then
  turn = 1
  redis.call('HSET', K.meta, 'turn', stamp)
  bytes = 0
  for _, name in ipairs(redis.call('HRANDFIELD', K.queued, limit)) do
    local f, row = described(name)
    if not f[1] then
      redis.call('HDEL', K.queued, name)
    elseif f[4] ~= '1' then
      waiting[#waiting + 1] = row
      bytes = bytes + #f[1] + #row[6]
    end
    if bytes > BYTES then break end
  end
end

local denied = redis.call('HLEN', denied_to(service))
return {now, awake, holder, wait, handing, queued, turn, due, waiting, denied, more, last, last_name}
