-- history: one line for a run that did not end its job; the history expires with the record.
--@include history
--@when later, again
if what then remember(record, job, what, more) end
--@when ended: history
if keep then redis.call('PEXPIRE', history_of(job), keep) end
