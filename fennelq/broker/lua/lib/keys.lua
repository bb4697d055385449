-- Names derived from the queue's prefix, and places.
--@include record
local function history_of(job) return prefix .. 'hist:' .. job end

-- A place, as records name it: lane/entry, 'sched', 'retry' or dlq/entry.
local function split(place) return string.match(place or '', '^([^/]+)/(.+)$') end
