-- expired: cancels a job that did not begin before its `expires`.
--@include refuse, begun
--@check
local expires = tonumber(f[F.expires])
if expires and expires <= now and not begun(f) then
  return refuse(lane, entry, job, 'K', '{"cancelled":"expired"}')
end
