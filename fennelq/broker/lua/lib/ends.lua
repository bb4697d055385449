-- The ends of jobs, for the recorder of the history. The stream `ends` exists only while there is one, so that apps without a
-- history pay for one EXISTS per call. These are variables and not functions, because each function that a call makes would
-- cost as much as an EXISTS.
--
-- A call adds one entry. Its field `e` has the time of the call, and a word for each job: a space, the letter of its outcome and
-- its key. Now and then an entry also has the counter of such ends, in a field named by the letter: so the recorder knows how many
-- it has missed. `write_counts` adds the entry, because it has the counters.
--
-- While the stream exists, success leaves the arguments in the record. The recorder empties them when it has read them.

-- The name of the stream; false when there is none, nil until a job has ended in this call.
local recorded_in

-- The time and the first word of this call, nil when it adds no entry; and its other words. Most calls end one job or a batch,
-- and for one job, a table would add a tenth to the cost of the entry.
local ended, others_ended

-- What is before the letter. An end that no counter counts has two spaces.
local before_letter = ' '
