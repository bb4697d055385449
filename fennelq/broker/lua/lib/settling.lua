-- The run that succeeds now, and the copies of jobs that this script has removed (`lib/twins`). A batch may contain both
-- copies of a job.
local settling, removed_copies
