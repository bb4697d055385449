-- version: postpones a job whose record a later fennelq has written, for workers that can read it. The job does not
-- run, so the reply of fetch names some of these jobs, and the worker logs them.
--@include refuse
local VERSION, TOO_NEW = 2, 8

function made.is_too_new(version) return (tonumber(version) or VERSION + 1) > VERSION end

function made.refuse_too_new(lane, entry, job, f)
  local problem = 'the record has wire version ' .. f[F.version] .. ' and this worker reads ' .. VERSION .. ': upgrade fennelq where the worker runs'
  refuse_failed(lane, entry, job, f, 'U', 'UnknownVersion', problem, 'unknown_version')
  local n = #too_new
  if n < 3 * TOO_NEW then too_new[n + 1], too_new[n + 2], too_new[n + 3] = job, f[F.task] or '', problem end
end
--@check
if f[F.version] and gates().is_too_new(f[F.version]) then
  return gates().refuse_too_new(lane, entry, job, f)
end
