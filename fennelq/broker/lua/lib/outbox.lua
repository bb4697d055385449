-- The outbox has jobs on their way to a queue in another slot, to which a script of this slot may not write. A script
-- writes the job here in the same step in which it decides that the job is needed. A courier enqueues the job in its
-- own queue, under its fixed id, and only then removes it here. Every step may be repeated.
--
-- Couriers look from time to time. A script of a queue that must not wait for that calls `tell_one('out')` of `lib/announce`.
--
-- A field is the id of the job, `queue:key`. Fields with a `/` belong to other parts, and couriers leave them alone.
local function hand_over(id, job) redis.call('HSET', K.outbox, id, job) end
