-- The result of a job, and how long its record is kept.
--@include record
local record_ms = tonumber(record_ttl)

-- How long to keep the record: at least as long as the result. `record_ttl` is long enough for a late retry of delay() to
-- find it. `least` is set when a courier has enqueued the job: long enough for a courier that repeats this to find it.
local keeps = {}
local function keep_for(ttl, least)
  local keep = keeps[ttl]
  if not keep then
    keep = tonumber(ttl) > record_ms and ttl or record_ttl
    keeps[ttl] = keep
  end
  return least and tonumber(least) > tonumber(keep) and least or keep
end

local function write_result(job, envelope, ttl)
  if ttl ~= '0' and envelope ~= '' then
    local result = result_of(job)
    redis.call('RPUSH', result, envelope)
    redis.call('PEXPIRE', result, ttl)
  end
end
