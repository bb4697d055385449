-- How many further jobs the queue takes, when at most `most` may wait, in lanes or in lines; nil when that is unbounded, or
-- when there is room for all jobs of this call.
--
-- An entry that an executor has taken stays in its lane until the job has ended, so those are subtracted. In most cases
-- there is room even with these entries, and the script does not count them. A lane that cannot be read counts as
-- empty.
--
-- `make_room` lets the queue take one more by dropping a job (`lib/drop`); nil in scripts that do not do that.
local room, make_room
if most ~= '' then
  local function number(reply) return tonumber(reply) or 0 end

  local function taken_of(stream)
    local groups = redis.pcall('XINFO', 'GROUPS', stream)
    for _, group in ipairs(groups) do
      local facts = {}
      for i = 1, #group, 2 do facts[group[i]] = group[i + 1] end
      if facts['name'] == GROUP then return facts['pending'] end
    end
    return 0
  end

  local jobs, lengths = (#ARGV - first + 1) / stride, {}
  -- Whatever the counter says, no job is in a line while no line is known.
  room = most - (redis.call('EXISTS', K.lines) == 1 and math.max(0, number(redis.pcall('HGET', K.counters, 'parked'))) or 0)
  for i, lane in ipairs(LANES) do
    lengths[i] = number(redis.pcall('XLEN', K[lane]))
    room = room - lengths[i]
  end
  if room < jobs then
    for i, lane in ipairs(LANES) do
      if lengths[i] > 0 then room = room + math.min(lengths[i], taken_of(K[lane])) end
    end
  end
  if room >= jobs then room = nil end
end
