-- ends_read: the records of jobs that have ended, for a recorder of the history.
--
-- It stops after BYTES, because a record may have a megabyte of arguments: the caller asks for the rest again.
--
-- Returns, per job: {the fields, in the order below, and the lines of its history} · false without a record.
--
--@args prefix
--@each job
--@include keys
--@flags no-writes
local BYTES = 1048576

local answers, bytes = {}, 0
for i = first, #ARGV do
  local f = redis.pcall('HMGET', record_of(ARGV[i]), F.task, F.status, F.arguments, F.options, F.created, F.ended, F.tries, F.run, F.failure, F.reason, F.idempotency, F.due, F.history)
  local is_there = not f.err and f[1]
  if is_there then
    if f[13] then f[13] = redis.pcall('LRANGE', history_of(ARGV[i]), 0, -1) end
    bytes = bytes + #(f[3] or '') + #(f[9] or '') + 200
  end
  answers[#answers + 1] = is_there and f
  if bytes > BYTES then break end
end
return answers
