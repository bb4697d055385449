-- nothing_due: ends `promote` when no job is due.
--@include next_due
local wait = next_due()
if wait ~= 0 then return {0, wait} end
