-- Whether an executor runs the copy of a job at this place. When the group of a lane was lost, only the record knows it.
--@include twins
local function is_taken(f, place)
  if f[F.status] ~= 'X' then return false end
  return f[F.place] == place or f[F.twin] ~= nil and twins().is_run(f[F.twin], place)
end
