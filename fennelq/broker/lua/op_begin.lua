-- op_begin: records an operation on many jobs, before it is performed. A call that is repeated records nothing.
--
-- The index has the newest operations, at most MOST. The record of each ends by its TTL, which each step renews.
--
-- Returns 1 recorded · 0 it is there already.
--
--@args prefix, id, ttl
--@each field, value
--@include now, operations
--@flags allow-oom

local MOST = 1000

local record = record_of(id)
if redis.call('EXISTS', record) == 1 then return 0 end
redis.call('HSET', record, 'begun', stamp, 'state', 'running', 'by', '', unpack(ARGV, first))
redis.call('PEXPIRE', record, ttl)
redis.call('ZREMRANGEBYSCORE', K.operations, '-inf', now - ttl)
redis.call('ZADD', K.operations, stamp, id)
redis.call('ZREMRANGEBYRANK', K.operations, 0, -MOST - 1)
redis.call('PEXPIRE', K.operations, ttl)
return 1
