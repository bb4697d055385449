-- replayable: finds out which dead jobs a replay could put back, and writes nothing. The changes are those that the replay
-- would make; only the idempotency key among them matters.
--
-- Returns, per entry: 1 it can go back · 0 no longer there · -1 its idempotency key is taken by another job · -2 its record
-- cannot be read.
--
--@args prefix
--@each entry, changes
--@include replayable
--@flags no-writes

local function judge(entry, changes)
  local job, f = dead_job(entry)
  if not f then return job and -2 or 0 end
  local key, old = changes[F.idempotency], f[F.idempotency]
  return is_taken(job, key or old, key and old and key ~= old) and -1 or 1
end

local answers, i = {}, first
while i <= #ARGV do
  local number = tonumber(ARGV[i + 1]) or 0
  answers[#answers + 1] = judge(ARGV[i], read_changes(i + stride, number))
  i = i + stride + number
end
return answers
