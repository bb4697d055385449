-- place: drops an entry whose record is gone, is of a wrong type, or names another place. Only the record decides where
-- a job is.
--
-- Status X at exactly this place means that the reply which delivered the job was lost, or that the group was deleted
-- and created anew while the job ran. The job starts again. An executor that already runs it holds the same token, so
-- the job ends once.
--@include refuse, counts, lines, twins

-- A start as the twin takes no further slot, and is charged to the rates, as a job that starts again.
local function passes_again(job, f)
  if not f[F.gates] then return true end
  local _, shut_or_error = pcall(lines().pass, job, f[F.gates], home_of(f[F.place], f[F.lane]))
  return not shut_or_error
end

-- Starts the second copy of a job that runs, or drops it.
local function meet_twin(lane, entry, job, deliveries, record, f)
  local place, run = lane .. '/' .. entry, f[F.run]
  if twins().may_start(f, place, consumer) and passes_again(job, f) then
    f[F.place] = place
    start(job, deliveries, record, f)
    return twins().start(record, place, consumer, stamp, run)
  end
  drop(lane, entry)
  count('dropped')
  twins().drop(record, job, place, 'dropped')
end

function made.meet_stranger(lane, entry, job, deliveries, record, f)
  if f and f[F.twin] then return meet_twin(lane, entry, job, deliveries, record, f) end
  drop(lane, entry)
  count('dropped')
end
--@check
if not f or f[F.place] ~= lane .. '/' .. entry or (f[F.status] and f[F.status] ~= 'Q' and f[F.status] ~= 'X') then
  return gates().meet_stranger(lane, entry, job, deliveries, record, f)
end
