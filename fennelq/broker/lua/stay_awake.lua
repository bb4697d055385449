-- stay_awake: removes an executor from those that sleep, because it stops or leaves the queue. Messages that are under way to
-- it are passed on by the executor.
--
-- Returns 1.
--
--@args prefix, executor
--@include awake
--@flags allow-oom

stay_awake(executor)
return 1
