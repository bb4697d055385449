-- The ms until the next scheduled or retried job of the queue is due; 0 when one is due, -1 when there is none. Also
-- whether one of the sets cannot be read.
--@include now
local function next_due()
  local wait, damaged = -1, false
  for _, set in ipairs({K.scheduled, K.retries}) do
    local head = redis.pcall('ZRANGE', set, 0, 0, 'WITHSCORES')
    if head.err then damaged = true end
    local due = not head.err and head[2] and math.max(0, head[2] - now)
    if due and (wait < 0 or due < wait) then wait = due end
  end
  return wait, damaged
end
