-- From this delivery on a job runs in quarantine.
local QUARANTINE_FROM = 3

-- The delivery number of an entry: see `entries`.
local function deliveries_in(fields) return tonumber(fields[4]) or 1 end
