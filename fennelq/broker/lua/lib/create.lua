-- Creates the jobs of a call, and makes the list `answers`: see `enqueue`.
--@include now, paused, keys, entries, lines, room
local refusal = paused and string.find(paused .. '\n', '^c?e\n') and {paused}

-- Most calls create nothing but plain jobs that may run now, so the functions for all others are made when the first of those
-- is met.
local create_any

local answers, i = {}, first
local open = not refusal and not room
while i <= #ARGV do
  local job, lane, due, task, args, count = unpack(ARGV, i, i + 5)
  if open and count == '' and due == '' then
    local record = record_of(job)
    if redis.call('EXISTS', record) == 1 then
      answers[#answers + 1] = 0
    else
      redis.call('HSET', record, F.task, task, F.arguments, args, F.place, lane .. '/' .. add_entry(lane, job, 1), F.created, stamp)
      answers[#answers + 1] = 1
    end
    i = i + stride
  else
    count = tonumber(count) or 0
    if not create_any then
      --@paste carried
      create_any = create
    end
    answers[#answers + 1] = create_any(job, lane, due, task, args, i + stride, count)
    i = i + stride + count
  end
end
