-- forget: removes dead jobs for good: the DLQ entry, the record, the result and the idempotency key, together.
--
-- Answers how many were removed.
--
--@args prefix
--@each entry
--@include forget
--@flags allow-oom

local removed = 0
for i = first, #ARGV do removed = removed + forget(ARGV[i]) end
if removed > 0 then redis.pcall('HINCRBY', K.counters, 'purged', removed) end
return removed
