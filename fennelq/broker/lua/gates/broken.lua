-- broken: a record without a task or without arguments cannot be run by any worker.
--@include refuse
--@check
if not f[F.task] or not f[F.arguments] then
  return gates().refuse_failed(lane, entry, job, f, 'D', 'Broken', 'the record has no task or no arguments', 'broken')
end
