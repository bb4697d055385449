-- idempotency: a key without a window of its own is held exactly as long as the record lives. Another job may hold the key
-- by now, when the holder's record was lost: then it is left alone.
--@include idempotency
--@when ended: idempotency
local name = string.match(idempotency, '^=(.+)$')
if keep and name and named_by(name) == job then redis.call('PEXPIRE', idem_of(name), keep) end
