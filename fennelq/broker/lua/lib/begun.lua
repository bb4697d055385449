-- Whether a handler of the job may have begun before: then it does not expire any more, because a part of its work may
-- be done. `blank_starts` counts the starts in which certainly no handler began.
--@include run
local function begun(f) return select(3, run_of(f[F.run])) > (tonumber(f[F.blank_starts]) or 0) end
