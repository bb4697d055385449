-- When a job is due: '+ms' counts from now, '@ms' is a moment.
local function due_at(text)
  local sign, ms = string.match(text, '^([+@])(%d+)$')
  return sign == '+' and now + ms or tonumber(ms)
end
