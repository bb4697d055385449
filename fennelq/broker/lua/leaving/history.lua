-- history: writes a line about a run that did not end its job. The history expires together with the record.
--@include history
--@when later, again
if what then remember(record, job, what, more) end
--@when ended: history
if keep then redis.call('PEXPIRE', history_of(job), keep) end
