-- An entry names its job and, from the second delivery on, which delivery it is.
local function add_entry(lane, job, deliveries)
  if deliveries > 1 then return redis.call('XADD', K[lane], '*', 'i', job, 'n', deliveries) end
  return redis.call('XADD', K[lane], '*', 'i', job)
end

local function deliveries_in(fields) return tonumber(fields[4]) or 1 end

-- Puts a job at the end of a lane, as a new entry and so with a new token, and says so in its record.
local function ready(record, job, lane, deliveries)
  redis.call('HSET', record, F.status, 'Q', F.place, lane .. '/' .. add_entry(lane, job, deliveries))
end

-- A job that leaves its lane must find back to it. While it is there its place says so, and nothing is written.
local function keep_lane(record, lane)
  if lane ~= NORMAL and lane ~= QUARANTINE then redis.call('HSET', record, F.lane, lane) end
end

-- When a job is due: '+ms' counts from now, '@ms' is a moment.
local function due_at(text)
  local sign, ms = string.match(text, '^([+@])(%d+)$')
  return sign == '+' and now + ms or tonumber(ms)
end
