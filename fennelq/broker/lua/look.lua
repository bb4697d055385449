-- look: what there is to do about recurring jobs, by the server's clock.
--
-- Whoever looks promises that somebody will look again by the next due time, or after `longest`. A process that comes
-- new and finds the promise broken knows that nobody was there: ticks that are due by now were missed, and only ticks
-- that come due from now on (`awake`) can be merely late. A process that has looked before was there itself, however late
-- it is; but not even that counts when nobody has looked for a minute, as after a night in a laptop's bag.
--
-- Hand-overs that somebody has left behind, and runs that queue until the one before has ended, which has to be asked of
-- another slot, are looked after in turns: one executor every now and then, not the whole fleet at once.
--
-- Due schedules come in pages, the longest due first. Those that an executor cannot claim stay due, for others that can:
-- it asks for what comes after them, from the time and the name of the last one on the page before.
--
-- Answers {now, awake, the version that declares, ms to the next due time or -1, hand-overs waiting, schedules whose runs
-- queue, your turn 0/1, the due schedules, some of those whose runs queue, how many schedules another service keeps from
-- this one, whether more are due 0/1, time and name of the last on this page}; of each schedule its name, definition,
-- next, last job, whether that is still on its way, the runs that queue. The version is '' while this one has something
-- to declare: it has not declared all, or a fennelq from before there were services has declared since.
--
--@args prefix, service, version, again, longest, limit, after, after_name
--@include now, cron, service_keys
--@flags allow-oom

local LATE, GONE = 1000, 60000
local TURN = 200
local BYTES = 1048576

local function about(name)
  local f = redis.call('HMGET', state_of(name), 'definition', 'next', 'last_job', 'paused')
  local job = f[3] or ''
  return f, {name, f[1], f[2], job, redis.call('HEXISTS', K.outbox, job), redis.call('HGET', K.queued, name) or ''}
end

-- How many of the due ones come before this page.
local function passed_over()
  if after == '' then return 0 end
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
  local f, said = about(name)
  if f[1] and string.match(f[2] or '', '^%d+$') then
    due[#due + 1] = said
    bytes = bytes + #f[1] + #said[6]
  else
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

-- Due ones are looked after first.
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
    local f, said = about(name)
    if not f[1] then
      redis.call('HDEL', K.queued, name)
    elseif f[4] ~= '1' then
      waiting[#waiting + 1] = said
      bytes = bytes + #f[1] + #said[6]
    end
    if bytes > BYTES then break end
  end
end

local denied = redis.call('HLEN', denied_to(service))
return {now, awake, holder, wait, handing, queued, turn, due, waiting, denied, more, last, last_name}
