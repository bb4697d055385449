-- Names derived from the queue's prefix. Job keys come out of streams, so records and results cannot be declared.
local function record_of(job) return prefix .. 'j:' .. job end
local function result_of(job) return prefix .. 'r:' .. job end
local function history_of(job) return prefix .. 'hist:' .. job end

-- A place, as records name it: lane/entry, 'sched', 'retry' or dlq/entry.
local function split(place) return string.match(place or '', '^([^/]+)/(.+)$') end
