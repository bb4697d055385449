-- stopping: ends a job that was asked to stop while it ran, and was handed back before it ended. A worker of an earlier
-- version starts it again.
--@include refuse
--@check
if f[F.stopping] then
  return gates().refuse(lane, entry, job, 'K', cjson.encode({cancelled = f[F.stopping]}))
end
