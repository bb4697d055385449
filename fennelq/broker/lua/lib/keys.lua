-- Names derived from the queue's prefix. Job keys come out of streams, so records and results cannot be declared.
local function record_of(job) return prefix .. 'j:' .. job end
local function result_of(job) return prefix .. 'r:' .. job end
local function history_of(job) return prefix .. 'hist:' .. job end
local function idem_of(name) return prefix .. 'idem:' .. name end

-- The job an idempotency key names; false when it names none.
local function named_by(name)
  local job = redis.pcall('GET', idem_of(name))
  return type(job) == 'string' and job
end

-- A record is marked when its end concerns others: somebody waits, or a key or a history ends with it. The mark is the
-- field of its end, empty until then, so that success learns from the write it makes anyway whether to look further. Such
-- a record says its status even where others leave it out, or that write would add a field after all.

local function split(place) return string.match(place or '', '^([^/]+)/(.+)$') end
