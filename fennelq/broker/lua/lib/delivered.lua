-- Where the entries of a lane begin that no executor has taken yet, for XRANGE.
local function after_delivered(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err or not groups[1] then return '-' end
  for i = 1, #groups[1], 2 do
    if groups[1][i] == 'last-delivered-id' then return '(' .. groups[1][i + 1] end
  end
end
