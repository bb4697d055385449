-- Names derived from the queue's prefix. Job keys come out of streams, so records and results cannot be declared.
local GROUP = 'fq'
local function record_of(job) return prefix .. 'j:' .. job end
local function result_of(job) return prefix .. 'r:' .. job end
local function history_of(job) return prefix .. 'hist:' .. job end
local function idem_of(name) return prefix .. 'idem:' .. name end

-- The job an idempotency key names; false when it names none.
local function named_by(name)
  local job = redis.pcall('GET', idem_of(name))
  return type(job) == 'string' and job
end

local function split(place) return string.match(place or '', '^([^/]+)/(.+)$') end
