-- Lets a call replace the call of a job that has not begun: its arguments and the options that describe its run. The id of the
-- job stays, and so do its place, its priority and its tries.
--@include now, keys, due, later, lines, take_out

-- Moves a job that waits for other gates than before. It goes through `scheduled`, because `promote` asks the gates of every
-- job. The new place is written first, so that an error leaves the job in two places, and never in none.
local function wait_for_gates(record, job, f)
  later(K.scheduled, job, now)
  redis.call('HSET', record, F.status, 'L', F.place, 'sched')
  keep_lane(record, (split(f[F.place])))
  take_out(job, f)
  pcall(lines().leave, job, f[F.gates] or '', home_of(f[F.place], f[F.lane]))
end

-- `call` is the id of the call, by which its repeat is recognized; `postponed` is when a debounced job is due now.
local function replace(job, f, call, args, more, postponed)
  local record = record_of(job)
  local changes, gone = {F.arguments, args, F.latest_call, call}, {}
  for _, letter in ipairs({F.options, F.expires, F.max_deliveries, F.gates}) do
    local list = more[letter] and changes or gone
    list[#list + 1] = letter
    list[#list + 1] = more[letter]
  end
  if f[F.gates] ~= more[F.gates] and f[F.status] == 'Q' then wait_for_gates(record, job, f) end
  redis.call('HSET', record, unpack(changes))
  if #gone > 0 then redis.call('HDEL', record, unpack(gone)) end
  if postponed and f[F.due_by] and f[F.status] == 'L' then
    later(K.scheduled, job, math.min(postponed, tonumber(f[F.due_by]) or postponed))
  end
end
