-- Begins a group in the index of dead jobs, if that takes one more: see `lib/groups`.
--@include group_keys, group_cursor, cut, utf8_text
-- What the index shows of a group: its first job. Texts are cut, because there may be a thousand groups.
local function look_of(first, task, error_type, message, why)
  local function shown(text, size) return utf8_text(cut(text, size)) end
  return cjson.encode({task = shown(task, 256), type = shown(error_type, 256), message = shown(message, 200), reason = shown(why, 100), first = first})
end

local function takes_no_group()
  if redis.pcall('HEXISTS', IN_GROUPS, OTHERS) == 1 then return true end
  return redis.pcall('HLEN', IN_GROUPS) - redis.pcall('HEXISTS', IN_GROUPS, '@') > MOST_GROUPS
end

-- Called when the jobs of a group have become `number`, which were just added. Returns the group that has them, and whether
-- it is new.
local function begin_group(group, number, first, task, error_type, message, why)
  if takes_no_group() then
    redis.pcall('HDEL', IN_GROUPS, group)
    group = OTHERS
    if redis.pcall('HINCRBY', IN_GROUPS, group, number) ~= number then return group end
  end
  redis.pcall('HSET', LOOKS, group, look_of(first, task, error_type, message, why))
  return group, group ~= OTHERS and not select(2, cursor_of_index())
end
