-- Names derived from the queue's prefix. A script reads the job keys from streams, so its call cannot declare the keys of
-- records and results. They are in the same slot.
local function record_of(job) return prefix .. 'j:' .. job end
local function result_of(job) return prefix .. 'r:' .. job end
local function history_of(job) return prefix .. 'hist:' .. job end

-- A place, as records name it: lane/entry, 'sched', 'retry' or dlq/entry.
local function split(place) return string.match(place or '', '^([^/]+)/(.+)$') end
