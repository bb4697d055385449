-- The executors that read only some lanes are in the sets of these lanes, so that no message for another lane ends there.
local function sleepers_of(lane) return K.sleepers .. ':' .. lane end
