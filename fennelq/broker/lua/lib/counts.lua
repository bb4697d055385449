-- Collects counts, and writes each counter once: one HINCRBY per batch instead of one per job.
local counts = {}

local function count(what, n) counts[what] = (counts[what] or 0) + (n or 1) end

-- A pcall, because the script has moved jobs by now: with an error, the caller would assume that it had not.
local function write_counts()
  for what, n in pairs(counts) do redis.pcall('HINCRBY', K.counters, what, n) end
end
