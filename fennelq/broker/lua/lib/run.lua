-- The latest start of a job: its executor, when (server ms), and how many starts there have been, which is the fence. One
-- field holds them, because every field of a record costs every job.
local function run_of(text)
  local owner, begun, starts = string.match(text or '', '^(.*) (%d+) (%d+)$')
  return owner, begun, tonumber(starts) or 0
end
