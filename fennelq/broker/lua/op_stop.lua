-- op_stop: stops an operation. Its performer learns of it with its next report, after the jobs that it acts on now.
--
-- Returns the state before, or '' when the operation is unknown.
--
--@args prefix, id
--@include now, operations
--@flags allow-oom

local record = record_of(id)
local state = redis.call('HGET', record, 'state')
if state == 'running' then redis.call('HSET', record, 'state', 'stopped', 'ended', stamp) end
return state or ''
