-- The index of the dead jobs: for each group the number of its jobs, facts about its first job, and its newest entry.
--
-- A group contains the dead jobs with one fingerprint. The worker writes the fingerprint into the failure. A job that a
-- script buries itself, or that an earlier release has buried, has none: then it is made of the reason, the task and
-- the type.
--
-- An entry that this release writes is counted in the same step, and has the fingerprint, the field `f`. An entry without it
-- is of an earlier release. `index` counts those, as far as its cursor, the field `@`. When the index was wrong, `index`
-- counts anew, and the cursor has a bound: up to the bound, entries with `f` too are counted only as far as the cursor. So
-- each entry shows whether it is counted, and one that goes is subtracted exactly if it is.
--
-- An index has at most MOST_GROUPS groups; the jobs of further kinds are counted together. As long as there are such
-- jobs, no new group begins: so the jobs of a fingerprint are all in its own group, or all in the group of the others.
--
-- Every call is a pcall, because an error in the index must not stop the script that moves a job. `index` finds and
-- repairs such errors afterwards.
--@include group_keys
-- Counts a job that dies now. Returns true when it begins a group. While the index is counted anew, that is unknown.
local function join_group(entry, group, task, error_type, message, why)
  local jobs, is_new = redis.pcall('HINCRBY', IN_GROUPS, group, 1)
  if jobs == 1 then
    --@paste begin_group
    group, is_new = begin_group(group, 1, entry, task, error_type, message, why)
  end
  redis.pcall('HSET', NEWEST, group, entry)
  return is_new
end
