-- The result of a job, and how long its record is kept.
--@include keys
local record_ms = tonumber(record_ttl)

-- At least as long as the result; long enough for a late retry of delay() to find the record; and, when the job was
-- handed over from another slot, long enough for a hand-over that is repeated.
local function keep_for(ttl, least)
  local keep = tonumber(ttl) > record_ms and ttl or record_ttl
  return least and tonumber(least) > tonumber(keep) and least or keep
end

local function write_result(job, envelope, ttl)
  if ttl ~= '0' and envelope ~= '' then
    local result = result_of(job)
    redis.call('RPUSH', result, envelope)
    redis.call('PEXPIRE', result, ttl)
  end
end
