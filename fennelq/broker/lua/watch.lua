-- watch: returns the end of a job, or registers the channel on which its end will be published.
--
-- Reading the state and registering are one step, so no end can happen between them. The call may be repeated: a waiter
-- repeats it from time to time, in case the message was lost.
--
-- A record has at most CHANNELS channels, one per waiting process, because the script that ends the job publishes to
-- each of them. The oldest is dropped; that process finds the end when it repeats the call. With an empty channel the
-- script only reads.
--
-- Returns, per job, {code, task, value}: 'end' with the envelope · 'wait' registered · 'gone' the result has expired,
-- or the job is unknown (then without a task).
--
--@args prefix, channel
--@each job
--@include keys
--@flags allow-oom

local CHANNELS = 64

local function with_channel(watchers)
  local channels = {}
  for known in string.gmatch(watchers, '%S+') do channels[#channels + 1] = known end
  channels[#channels + 1] = channel
  return table.concat(channels, ' ', math.max(1, #channels - CHANNELS + 1))
end

local function register(record, status, watchers)
  if channel == '' then return end
  if not watchers then
    redis.call('HSET', record, F.watchers, channel, F.ended, '', F.status, status or 'Q')
  elseif not string.find(' ' .. watchers .. ' ', ' ' .. channel .. ' ', 1, true) then
    redis.call('HSET', record, F.watchers, with_channel(watchers))
  end
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
  return {'wait', task, false}
end

local answers = {}
for i = first, #ARGV do answers[#answers + 1] = watch(ARGV[i]) end
return answers
