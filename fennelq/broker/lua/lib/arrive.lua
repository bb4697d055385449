-- A job that may run now goes to its lane, or to its line if it has limits and one of its gates is shut. If its gates cannot
-- be read, it goes to its lane as well: its start finds out what is wrong with them.
--@include ready, lines
local function arrive(record, job, lane, gates)
  if not gates or not pcall(lines().come, record, job, lane, gates) then ready(record, job, lane, 1) end
end
