-- watch: returns the end of a job, or registers the channel on which its end will be published.
--
-- Reading the state and registering are one step, so no end can happen between them. The call may be repeated: a waiter
-- repeats it from time to time, in case the message was lost.
--
-- A record has at most CHANNELS channels, one per waiting process, because the script that ends the job publishes to
-- each of them. The oldest is dropped; that process finds the end when it repeats the call. With an empty channel the
-- script registers nothing.
--
-- With `follows`, the channel is registered for the progress of the job as well, in a field of its own and with the same
-- bound. The script that ends the job empties both fields.
--
-- This script cancels a job that has expired and has not begun, wherever it waits: otherwise its waiters would get its
-- end only when its turn comes, or when it is due. Few calls meet such a job, so this part comes after
-- `early/none_expired`, which has the functions that every call needs.
--
-- Returns, per job, {code, task, value}: 'end' with the envelope · 'wait' registered · 'gone' the result has expired,
-- or the job is unknown (then without a task). With `follows`, the value of 'wait' is the latest progress.
--
--@args prefix, queue, record_ttl, failure_ttl, patience, channel, follows
--@each job
--@include early/none_expired, now, keys, fields, begun, take_out, settle
--@flags allow-oom

local function expire(job)
  local f = load(record_of(job))
  if not begun(f) and take_out(job, f) then
    settle_job(job, f[F.place], 'K', failure_ttl, cjson.encode({cancelled = f[F.stopping] or 'expired'}))
  end
end

-- A pcall, because the user of a waiter may lack the rights to do this. Then the job is cancelled when its turn comes.
for _, place in ipairs(late) do
  pcall(expire, ARGV[first + place - 1])
  answers[place] = watch(ARGV[first + place - 1])
end
wake_sleepers()
write_counts()
return answers
