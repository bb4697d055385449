-- idempotency: a key without a window of its own expires together with the record. If the job's record was lost, another
-- job may hold the key by now: then it is left alone.
--@include idempotency
--@when ended: idempotency
local name = string.match(idempotency, '^=(.+)$')
if keep and name and named_by(name) == job then redis.call('PEXPIRE', idem_of(name), keep) end
