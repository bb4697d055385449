-- The outbox: jobs on their way to a queue in another slot, which no script of this slot may write to. The job is written
-- down together with the decision that it is to be; a courier enqueues it in its own queue, under its fixed id, and only
-- then removes it here. Every step may be repeated.
--
-- A field is the id of the job, `queue:key`. Fields with a `/` are for other parts, and couriers leave them alone.
local function hand_over(id, job) redis.call('HSET', K.outbox, id, job) end

-- Wakes the couriers of all executors. A script calls it when no executor learns from its reply that there is something
-- to carry. The message may get lost: couriers look by themselves now and then.
local function announce_outbox() redis.pcall('PUBLISH', prefix .. 'wake', 'out') end
