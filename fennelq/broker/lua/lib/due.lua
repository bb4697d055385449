-- When a job is due: '+ms' is a time from now, '@ms' is a time since the epoch.
local function due_at(text)
  local sign, ms = string.match(text, '^([+@])(%d+)$')
  return sign == '+' and now + ms or tonumber(ms)
end
