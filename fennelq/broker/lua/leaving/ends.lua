-- ends: writes down the end for the recorder of the history. A success is written down where it is settled, because that happens
-- to most jobs, and most of them need no leaving.
--@include ends
--@when ended
if what ~= 'S' and what ~= 'N' then
  if is_recorded == nil then is_recorded = redis.call('EXISTS', prefix .. N.ends) == 1 end
  if is_recorded then
    ended = ended or {}
    ended[#ended + 1] = ' ' .. what .. job
  end
end
