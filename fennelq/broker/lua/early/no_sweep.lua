-- no_sweep: ends `recover` unless this executor is to sweep now. Most calls find that another executor has swept.
--
-- An executor of a version before lines does not report after its sweep that jobs wait in lines. If it were the first
-- in every interval, the limits would never be mended. Its mark in `swept` is 1. The first executor of this version
-- that finds this mark reports the lines, and replaces the mark.
--@include now, quarantine
if now - beaten > lease / 2 or now - beaten < ago - lease / 2 then return in_quarantine() end
local mark = more == '0' and redis.call('SET', K.swept, '2', 'NX', 'GET', 'PX', interval)
if mark then
  if redis.call('PTTL', K.swept) <= math.max(lease, interval) then
    if mark ~= '1' then return in_quarantine() end
    redis.call('SET', K.swept, '2', 'KEEPTTL')
    return {0, 0, 0, 0, 0, in_quarantine(), redis.call('EXISTS', K.lines)}
  end
  redis.call('SET', K.swept, '2', 'PX', interval)
end
