-- idempotency: lets a key without its own window expire with the record. If another job has taken the key meanwhile, it is
-- not changed.
--@include idempotency
--@when ended: idempotency
local name = string.match(idempotency, '^[=<>^](.+)$')
if keep and name and named_by(name) == job then redis.call('PEXPIRE', idem_of(name), keep) end
