-- nothing_due: ends `promote` when no job is due. A set that cannot be read is an error, which the script raises.
--@include next_due
local wait, damaged = next_due()
if wait ~= 0 and not damaged then return {0, wait} end
