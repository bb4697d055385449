-- op_perform: claims an operation, or reports how far its performer has come.
--
-- An operation has one performer at a time. Another process may claim it when its performer was silent for `silence`,
-- or when it was stopped. A report from the future is from before the clock was set back: it is as old as it is ahead.
-- If the first performer comes back, the reply tells it that the operation is not its own any more. Before that, it may
-- have acted on one more page of jobs. This does no harm, because an act happens to a job only once.
--
-- `wish`: claim · go_on · done · failed. The last two end it. All but `claim` write the values of the fields.
--
-- Returns {answer, record}: 'yours', or why not: 'unknown', 'busy' (another process performs it), 'stopped' (claimed by none),
-- 'done', 'failed'. The record is a flat list.
--
--@args prefix, id, performer, wish, silence, ttl
--@each field, value
--@include now, operations
--@flags allow-oom

local record = record_of(id)
local known = redis.call('HMGET', record, 'state', 'by', 'beat')
-- Before the first claim there is no beat, so any process may claim it.
local state, by, beat = known[1], known[2], tonumber(known[3]) or 0
if not state then return {'unknown', {}} end

local function answer(word) return {word, redis.call('HGETALL', record)} end

if wish == 'claim' then
  if state == 'done' then return answer('done') end
  if state == 'running' and by ~= performer and math.abs(now - beat) < tonumber(silence) then return answer('busy') end
  redis.call('HSET', record, 'state', 'running', 'by', performer, 'beat', stamp)
  redis.call('HDEL', record, 'ended', 'problem')
else
  local mine = by == performer
  if not mine or state ~= 'running' then return answer(mine and state or 'busy') end
  if wish ~= 'go_on' then redis.call('HSET', record, 'state', wish, 'ended', stamp) end
  redis.call('HSET', record, 'beat', stamp, unpack(ARGV, first))
end
redis.call('PEXPIRE', record, ttl)
redis.call('PEXPIRE', K.operations, ttl)
return answer('yours')
