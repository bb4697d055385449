-- The record of an operation: what it does, to which jobs, how far it has come, and who performs it. `beat` is when its
-- performer was last there.
local function record_of(id) return prefix .. 'op:' .. id end
