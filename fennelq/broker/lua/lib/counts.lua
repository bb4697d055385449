-- Counts what happened, and writes each counter once: one HINCRBY for a batch instead of one for each of its jobs.
local counts = {}

local function count(what, n) counts[what] = (counts[what] or 0) + (n or 1) end

-- A pcall: a counter that cannot be written must not fail the script, which has moved jobs by now.
local function write_counts()
  for what, n in pairs(counts) do redis.pcall('HINCRBY', K.counters, what, n) end
end
