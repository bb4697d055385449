-- The error of a command as the reply of the script. For a missing permission, servers begin it with NOPERM in the reply to
-- a client, and with ERR in a script: here it begins with NOPERM as well.
local function refusal_of(err)
  local denied = string.find(err, 'ACL failure', 1, true) or string.find(err, 'The user executing the script', 1, true)
  return redis.error_reply(denied and 'NOPERM ' .. string.gsub(err, '^ERR ', '') or err)
end
