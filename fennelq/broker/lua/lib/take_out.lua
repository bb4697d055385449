-- Removes a waiting job from its place; false when it does not wait.
--
-- The entry of a queued job is acknowledged as well as deleted, because a worker of an earlier version may have read it
-- without starting the job.
--@include keys, lines
local function take_out(job, f)
  if f[F.status] == 'L' then return redis.call('ZREM', K.scheduled, job) == 1 end
  if f[F.status] == 'R' then return redis.call('ZREM', K.retries, job) == 1 end
  if f[F.status] and f[F.status] ~= 'Q' then return false end
  if f[F.place] == 'line' then return lines().take_out(job, f[F.gates] or '', f[F.lane] or NORMAL) end
  local lane, entry = split(f[F.place])
  if not lane then return false end
  redis.call('XACK', K[lane], GROUP, entry)
  return redis.call('XDEL', K[lane], entry) == 1
end
