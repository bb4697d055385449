-- enqueue: creates each job once and puts it in its place.
--
-- A job whose record exists is not created again, so a delay() that is repeated after a lost reply is harmless. The
-- idempotency key is taken in the same step. Without `allow-oom`, the server refuses the script when it is over
-- maxmemory: it creates no job, and the caller gets the error.
--
-- With `most`, it creates no job while that many wait (`lib/room`).
--
-- Returns, per job: 1 created · 0 the caller's own repeat · 2 another caller's call of the same id ·
-- -1 the id belongs to a different call · a job key: the holder of the idempotency key · {the value of `paused`}: the job
-- was not created, because callers may not create jobs while a person has paused that. Hand-overs may (`kept_at_least`):
-- the decision that the job is needed was made before · {how many jobs wait}: it was not created, because the queue is full.
--
--@args prefix, most
--@each job, lane, due, task, args, carried
--@include create

wake_sleepers()
return answers
