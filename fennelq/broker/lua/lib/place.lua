-- Puts a job at the end of a lane, as a new entry and so with a new token, and says so in its record.
local function ready(record, job, lane, deliveries)
  local entry = redis.call('XADD', prefix .. lane, '*', 'i', job, 'n', deliveries)
  redis.call('HSET', record, 's', 'Q', 'p', lane .. '/' .. entry)
end

-- A job that leaves its lane must find back to it. While it is there its place says so, and nothing is written.
local function keep_lane(record, lane)
  if lane ~= 's' and lane ~= 'iso' then redis.call('HSET', record, 'm', lane) end
end

-- When a job is due: '+ms' counts from now, '@ms' is a moment.
local function due_at(text)
  local sign, ms = string.match(text, '^([+@])(%d+)$')
  return sign == '+' and now + ms or tonumber(ms)
end
