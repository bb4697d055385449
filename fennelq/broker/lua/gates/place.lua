-- place: a job is where its record says it is. An entry whose record is gone, of a wrong type, or names another place
-- belongs to no job any more: it is dropped and counted.
--
-- Status X at this very place means that a reply was lost, or that the group was made anew under the job: it starts again.
-- The executor that already has it holds the same token, so it still ends once.
--@include refuse, counts
--@check
if not f or f[F.place] ~= lane .. '/' .. entry or (f[F.status] and f[F.status] ~= 'Q' and f[F.status] ~= 'X') then
  drop(lane, entry)
  count('dropped')
  return
end
