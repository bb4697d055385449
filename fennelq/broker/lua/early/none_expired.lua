-- none_expired: ends `watch` with its answers, unless a job that waits has expired.
--@include now, keys

local CHANNELS = 64

-- The channels with this one; nil when it is one of them.
local function with_channel(known)
  if string.find(' ' .. known .. ' ', ' ' .. channel .. ' ', 1, true) then return end
  local channels = {}
  for one in string.gmatch(known, '%S+') do channels[#channels + 1] = one end
  channels[#channels + 1] = channel
  return table.concat(channels, ' ', math.max(1, #channels - CHANNELS + 1))
end

local function register(record, status, watchers)
  if channel == '' then return end
  if not watchers then
    redis.call('HSET', record, F.watchers, channel, F.ended, '', F.status, status or 'Q')
  else
    local channels = with_channel(watchers)
    if channels then redis.call('HSET', record, F.watchers, channels) end
  end
end

-- Registers for the progress of a job; returns the latest.
local function follow(record)
  local known = redis.call('HMGET', record, F.followers, F.progress)
  local channels = channel ~= '' and with_channel(known[1] or '')
  if channels then redis.call('HSET', record, F.followers, channels) end
  return known[2]
end

-- Whether a job that waits with this status may have expired. A job that waits for its next try has begun.
local function is_late(status, expires)
  expires = tonumber(expires)
  return expires and expires <= now and (not status or status == 'Q' or status == 'L')
end

-- The answer for a job; with `unless_late` nil when it may have expired, and then nothing is written.
local function watch(job, unless_late)
  local record = record_of(job)
  local known = redis.pcall('HMGET', record, F.task, F.status, F.watchers, F.failure, F.reason, F.expires)
  local task, status = known[1], known[2]
  local envelope = redis.pcall('LINDEX', result_of(job), 0)
  if type(envelope) == 'string' then return {'end', task or false, envelope} end
  if known.err or not task then return {'gone', false, false} end
  if status == 'N' then return {'end', task, ''} end
  if status == 'D' and known[4] then return {'end', task, '{"dead":' .. known[4] .. '}'} end
  if status == 'K' then return {'end', task, cjson.encode({cancelled = known[5] or 'cancelled'})} end
  if status == 'S' then return {'gone', task, false} end
  if unless_late and is_late(status, known[6]) then return end
  register(record, status, known[3])
  return {'wait', task, follows ~= '' and follow(record)}
end

local answers, late = {}, {}
for i = first, #ARGV do
  local place = i - first + 1
  answers[place] = watch(ARGV[i], true)
  if not answers[place] then late[#late + 1] = place end
end
if #late == 0 then return answers end
