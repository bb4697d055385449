-- place: drops an entry whose record is gone, is of a wrong type, or names another place. Only the record decides where
-- a job is.
--
-- Status X at exactly this place means that the reply which delivered the job was lost, or that the group was deleted
-- and created anew while the job ran. The job starts again. An executor that already runs it holds the same token, so
-- the job ends once.
--@include refuse, counts
--@check
if not f or f[F.place] ~= lane .. '/' .. entry or (f[F.status] and f[F.status] ~= 'Q' and f[F.status] ~= 'X') then
  drop(lane, entry)
  count('dropped')
  return
end
