-- Where the entries of a lane begin that no executor has taken yet, for XRANGE. Other groups of the stream do not matter,
-- and an error is a table without elements.
local function after_delivered(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for _, group in ipairs(groups) do
    local facts = {}
    for i = 1, #group, 2 do facts[group[i]] = group[i + 1] end
    if facts['name'] == GROUP then return '(' .. facts['last-delivered-id'] end
  end
  return '-'
end
