-- Names of records and results. A script reads the job keys from streams, so its call cannot declare these keys. They are in
-- the same slot.
local function record_of(job) return prefix .. 'j:' .. job end
local function result_of(job) return prefix .. 'r:' .. job end
