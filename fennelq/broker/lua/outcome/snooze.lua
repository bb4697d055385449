-- Settles a run that was snoozed. Argument: `due`, the time at which the job is due again. It counts no try, and writes
-- no line of the history.
--@include due, lane, later, run_over
function settle.Z(record, job, place, _, due)
  keep_lane(record, (split(place)))
  later(K.scheduled, job, due_at(due))
  redis.call('HSET', record, F.status, 'L', F.place, 'sched', F.settled_by, place)
  run_over('later', record, job)
end
