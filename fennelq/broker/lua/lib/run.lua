-- The latest start of a job: its executor, its time by the server's clock, and the number of starts so far, which is the
-- fence. They share one field, because each field of a record costs memory and time for every job.
local function run_of(text)
  local owner, begun, starts = string.match(text or '', '^(.*) (%d+) (%d+)$')
  return owner, begun, tonumber(starts) or 0
end
