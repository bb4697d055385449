-- no_sweep: ends `recover` unless this executor is to sweep now. Most calls find that another executor has swept.
--@include now
if now - beaten > lease / 2 or now - beaten < ago - lease / 2 then return {0, 0, 0, 0, 0, 0} end
if more == '0' and not redis.call('SET', K.swept, '1', 'NX', 'PX', interval) then
  if redis.call('PTTL', K.swept) <= math.max(lease, interval) then return {0, 0, 0, 0, 0, 0} end
  redis.call('SET', K.swept, '1', 'PX', interval)
end
