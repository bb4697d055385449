-- Idempotency keys. Each is a string: the job that holds the key.
local function idem_of(name) return prefix .. 'idem:' .. name end

-- The job that holds the key, or false.
local function named_by(name)
  local job = redis.pcall('GET', idem_of(name))
  return type(job) == 'string' and job
end
