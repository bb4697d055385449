-- Ends `promote` when no job is due. It stands before the other parts of the script: Lua makes their functions anew with
-- each call, which would take longer than the rest of a call that finds nothing.
--@include next_due
local wait = next_due()
if wait ~= 0 then return {0, wait} end
