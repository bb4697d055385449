-- displace: creates jobs as `enqueue` does, in a queue that drops its oldest jobs to stay within its bound.
--
-- For each job that is more than `most` it drops one, in the same step: the oldest one that waits (`lib/drop`). A
-- dropped job is dead, and the script notifies its waiters. It is a script of its own, because `enqueue` would pay for
-- the functions that settle a job in every call.
--
-- Returns what `enqueue` returns, but no job is refused because the queue is full.
--
--@args prefix, most, queue, record_ttl, failure_ttl, patience
--@each job, lane, due, task, args, carried
--@include drop, create

wake_sleepers()
write_counts()
return answers
