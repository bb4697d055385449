-- forget: deletes dead jobs: the DLQ entry, the record, the result, the history and the idempotency key, in one step.
--
-- Returns how many were removed.
--
--@args prefix
--@each entry
--@include forget
--@flags allow-oom

local removed = 0
for i = first, #ARGV do removed = removed + forget(ARGV[i]) end
if removed > 0 then redis.pcall('HINCRBY', K.counters, 'purged', removed) end
return removed
