-- ends: writes down the end for the recorder of the history. A success is written down where it is settled, because that happens
-- to most jobs, and most of them need no leaving.
--@include ends
--@when ended
if what ~= 'S' and what ~= 'N' then
  if recorded_in == nil then
    local name = prefix .. N.ends
    recorded_in = redis.call('EXISTS', name) == 1 and name
  end
  if recorded_in then
    if ended then
      others_ended = others_ended or {}
      others_ended[#others_ended + 1] = before_letter .. what .. job
    else
      ended = stamp .. before_letter .. what .. job
    end
  end
end
