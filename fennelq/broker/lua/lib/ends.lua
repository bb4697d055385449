-- The ends of jobs, for the recorder of the history. The stream `ends` exists only while there is one, so that apps without a
-- history pay for one EXISTS per call. These are variables and not functions, because each function that a call makes would
-- cost as much as an EXISTS.
--
-- A call adds one entry. Its field `e` has the time of the call, and a word for each job: the letter of its outcome and its key.
-- For each of these letters, the entry also has the counter of such ends: so the recorder knows how many it has missed.
-- `write_counts` adds the entry, because it has the counters.
--
-- While the stream exists, success leaves the arguments in the record. The recorder empties them when it has read them.

-- Whether the stream exists; nil until a job has ended in this call.
local is_recorded

-- The words of this call; nil when it adds no entry.
local ended
