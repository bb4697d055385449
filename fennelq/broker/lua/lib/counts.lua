-- Collects counts, and writes each counter once: one HINCRBY per batch instead of one per job. Then it writes down which jobs
-- have ended, if the history is recorded: see `ends`.
--
-- The entries of the stream are limited, and a counter is added, when that counter reaches a multiple of 64: both at each call
-- would cost as much as the rest of the entry. If the counter is damaged, or none counts these ends (`before_letter`), the entries
-- are limited at each call.
--@include now, ends
local MOST_ENTRIES, CHECKED_EVERY = '10000', 64

local counts = {}

local function count(what, n) counts[what] = (counts[what] or 0) + (n or 1) end

-- A pcall, because the script has moved jobs by now: with an error, the caller would assume that it had not.
local function write_counts()
  local totals = before_letter ~= ' ' and {} or nil
  for what, n in pairs(counts) do
    local total = redis.pcall('HINCRBY', K.counters, what, n)
    if ended and (what == 'S' or what == 'N' or what == 'D' or what == 'K') then
      local damaged = type(total) ~= 'number'
      if damaged or total % CHECKED_EVERY < n then
        totals = totals or {}
        if not damaged then
          totals[#totals + 1] = what
          totals[#totals + 1] = total
        end
      end
    end
  end
  if not ended then return end
  if others_ended then ended = ended .. table.concat(others_ended) end
  if totals then
    redis.pcall('XADD', recorded_in, 'MAXLEN', '~', MOST_ENTRIES, '*', 'e', ended, unpack(totals))
  else
    redis.pcall('XADD', recorded_in, '*', 'e', ended)
  end
end
