-- ends_done: a recorder of the history has written these entries. They are removed, and the arguments of jobs that have succeeded
-- are emptied, as success does it without a recorder.
--
-- `ends` is the number of their ends: what recorders have taken and not recorded is counted in `ends:read`, so that it is
-- missed when the stream expires.
--
-- Returns how many of the entries were still there.
--
--@args prefix, number, ends
--@each word
--@include record
--@flags allow-oom
local READERS = 'history'

local function empty(job)
  local record = record_of(job)
  local status = redis.pcall('HGET', record, F.status)
  if status == 'S' or status == 'N' then redis.call('HSET', record, F.arguments, '') end
end

local entries = tonumber(number)
for i = first + entries, #ARGV do empty(ARGV[i]) end
if entries == 0 then return 0 end
local done = redis.pcall('XACK', K.ends, READERS, unpack(ARGV, first, first + entries - 1))
if type(done) == 'number' and done > 0 then
  redis.pcall('HINCRBY', K.ends_read, 'taken', -math.floor(tonumber(ends) * done / entries + 0.5))
end
return redis.call('XDEL', K.ends, unpack(ARGV, first, first + entries - 1))
