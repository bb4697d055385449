-- The names in the index of dead jobs, and the group of a job: see `lib/groups`.
local MOST_GROUPS, OTHERS = 1000, 'other'
local HEX = '^%x%x%x%x%x%x%x%x$'
local IN_GROUPS, LOOKS, NEWEST = prefix .. 'dlq:g', prefix .. 'dlq:f', prefix .. 'dlq:l'

-- The fingerprint, and whether it was given.
local function group_of(given, why, task, error_type)
  if type(given) == 'string' and string.match(given, HEX) then return given, true end
  return string.sub(redis.sha1hex(why .. '\n' .. task .. '\n' .. error_type), 1, 8), false
end
