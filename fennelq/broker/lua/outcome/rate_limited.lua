-- Settles a run that was refused by another service. Argument: `due`, the time for which it and the rates of the job wait. A
-- job without a rate is snoozed. It counts no try.
--@include stop_rates, run_over, outcome/snooze
function settle.G(record, job, place, _, due)
  redis.call('HSET', record, F.status, 'Q', F.settled_by, place)
  if not stop_rates(record, job, place, due) then
    settle.Z(record, job, place, 'Z', due)
    return 'Z'
  end
  run_over('later', record, job)
end
