-- stopping: a job that has ended cannot be asked to stop any more, so beats need not look at it.
--@when ended: stopping
redis.call('SREM', K.stopping, job)
