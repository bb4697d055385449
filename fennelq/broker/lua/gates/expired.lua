-- expired: cancels a job that did not begin before its `expires`.
--@include refuse, begun
made.begun = begun
--@check
local expires = tonumber(f[F.expires])
if expires and expires <= now and not gates().begun(f) then
  return gates().refuse(lane, entry, job, 'K', '{"cancelled":"expired"}')
end
