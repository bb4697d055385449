-- Ends the script with an error when the DLQ is not a stream, before anything is written: a script has no rollback, and
-- a job that cannot be written as dead must not have half a record.
local kind = redis.call('TYPE', K.dead).ok
if kind ~= 'stream' and kind ~= 'none' then
  return redis.error_reply('WRONGTYPE ' .. K.dead .. ' is a ' .. kind .. ' and should be a stream: rename or delete it')
end
