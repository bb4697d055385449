-- idempotency: sets the TTL of a key without its own window to that of the record. If the job's record was lost,
-- another job may hold the key by now: then the key is not changed.
--@include idempotency
--@when ended: idempotency
local name = string.match(idempotency, '^=(.+)$')
if keep and name and named_by(name) == job then redis.call('PEXPIRE', idem_of(name), keep) end
