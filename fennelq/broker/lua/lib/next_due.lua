-- The ms until the next scheduled or retried job of the queue is due, or a rate opens for a job of its line; -1 when there is
-- none, and 0 when one is due or a set cannot be read: then `promote` follows, which raises the error.
--@include now
local function next_due()
  local wait = -1
  for _, set in ipairs({K.scheduled, K.retries, K.alarms}) do
    local head = redis.pcall('ZRANGE', set, 0, 0, 'WITHSCORES')
    local due = head.err and 0 or head[2] and math.max(0, head[2] - now)
    if due and (wait < 0 or due < wait) then wait = due end
  end
  return wait
end
