-- expired: a job whose time is over before it began is cancelled.
--@include refuse, run, outcome/cancelled

-- Whether an executor that knows its task has taken the job before: then it has begun, and does not expire any more.
local function begun(f) return select(3, run_of(f[F.run])) > (tonumber(f[F.blank_starts]) or 0) end
--@check
local expires = f[F.expires] and tonumber(f[F.expires])
if expires and expires <= now and not begun(f) then
  return refuse(lane, entry, job, 'K', '{"cancelled":"expired"}')
end
