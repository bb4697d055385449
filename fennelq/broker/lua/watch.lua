-- watch: returns the end of a job, or registers the channel on which its end will be published.
--
-- Reading the state and registering are one step, so no end can happen between them. The call may be repeated: a waiter
-- repeats it from time to time, in case the message was lost.
--
-- A record has at most CHANNELS channels, one per waiting process, because the script that ends the job publishes to
-- each of them. The oldest is dropped; that process finds the end when it repeats the call. With an empty channel the
-- script only reads.
--
-- With `follows`, the channel is registered for the progress of the job as well, in a field of its own and with the same
-- bound. The script that ends the job empties both fields.
--
-- Returns, per job, {code, task, value}: 'end' with the envelope · 'wait' registered · 'gone' the result has expired,
-- or the job is unknown (then without a task). With `follows`, the value of 'wait' is the latest progress.
--
--@args prefix, channel, follows
--@each job
--@include keys
--@flags allow-oom

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

local function watch(job)
  local record = record_of(job)
  local known = redis.pcall('HMGET', record, F.task, F.status, F.watchers, F.failure, F.reason)
  local task, status = known[1], known[2]
  local envelope = redis.pcall('LINDEX', result_of(job), 0)
  if type(envelope) == 'string' then return {'end', task or false, envelope} end
  if known.err or not task then return {'gone', false, false} end
  if status == 'N' then return {'end', task, ''} end
  if status == 'D' and known[4] then return {'end', task, '{"dead":' .. known[4] .. '}'} end
  if status == 'K' then return {'end', task, cjson.encode({cancelled = known[5] or 'cancelled'})} end
  if status == 'S' then return {'gone', task, false} end
  register(record, status, known[3])
  return {'wait', task, follows ~= '' and follow(record)}
end

local answers = {}
for i = first, #ARGV do answers[#answers + 1] = watch(ARGV[i]) end
return answers
