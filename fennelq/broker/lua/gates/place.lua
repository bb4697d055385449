-- place: drops an entry whose record is gone, is of a wrong type, or names another place. Only the record decides where a
-- job is.
--
-- With status X at this very place, the reply that delivered the job was lost, or the group was deleted and created anew
-- while the job ran. It starts again. The executor that already runs it holds the same token, so the job ends once.
--@include refuse, counts
--@check
if not f or f[F.place] ~= lane .. '/' .. entry or (f[F.status] and f[F.status] ~= 'Q' and f[F.status] ~= 'X') then
  drop(lane, entry)
  count('dropped')
  return
end
