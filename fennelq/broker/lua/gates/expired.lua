-- expired: cancels a job that did not begin before its `expires`.
--@include refuse, run, outcome/cancelled

-- Whether a handler of the job may have begun before: then it does not expire any more, because its work may be half
-- done. `blank_starts` counts the starts in which certainly no handler began.
local function begun(f) return select(3, run_of(f[F.run])) > (tonumber(f[F.blank_starts]) or 0) end
--@check
local expires = f[F.expires] and tonumber(f[F.expires])
if expires and expires <= now and not begun(f) then
  return refuse(lane, entry, job, 'K', '{"cancelled":"expired"}')
end
