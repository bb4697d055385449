-- groups: reads the index of the dead jobs.
--
-- Returns {dead jobs, the number of each group and the cursor of `index`, facts about the first job of each, the newest
-- entry of each}.
--
--@args prefix
--@include group_keys
--@flags no-writes

local function read(key)
  local flat = redis.pcall('HGETALL', key)
  return flat.err and {} or flat
end

local length = redis.pcall('XLEN', K.dead)
return {type(length) == 'number' and length or 0, read(IN_GROUPS), read(LOOKS), read(NEWEST)}
