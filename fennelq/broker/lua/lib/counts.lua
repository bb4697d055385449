-- Collects counts, and writes each counter once: one HINCRBY per batch instead of one per job. Then it writes down which jobs
-- have ended, if the history is recorded: see `ends`.
--@include now, ends
local MOST_ENTRIES = 10000

local counts = {}

local function count(what, n) counts[what] = (counts[what] or 0) + (n or 1) end

-- A pcall, because the script has moved jobs by now: with an error, the caller would assume that it had not.
local function write_counts()
  local totals = {}
  for what, n in pairs(counts) do
    local total = redis.pcall('HINCRBY', K.counters, what, n)
    if ended and (what == 'S' or what == 'N' or what == 'D' or what == 'K') and type(total) == 'number' then
      totals[#totals + 1] = what
      totals[#totals + 1] = total
    end
  end
  if ended then
    redis.pcall('XADD', prefix .. N.ends, 'MAXLEN', '~', MOST_ENTRIES, '*', 'e', stamp .. table.concat(ended), unpack(totals))
  end
end
