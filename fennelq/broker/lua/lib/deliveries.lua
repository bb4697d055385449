-- The number of the delivery that an entry is: see `entries`.
local function deliveries_in(fields) return tonumber(fields[4]) or 1 end
