-- gc: bounds the DLQ by age and by count, and deletes unused consumers and the names of sleepers that have ended, at most
-- `limit` of each per call.
--
-- A consumer is deleted only when its pending list is empty, which this script checks in the same step: deleting a
-- consumer drops its pending entries, and recovery would never find them.
--
-- Returns {dead jobs removed, consumers removed}.
--
--@args prefix, max_age, max_len, idle, limit
--@include now, forget, sleepers, bell
--@flags allow-oom

local function trim_dlq()
  local surplus = math.max(0, redis.call('XLEN', K.dead) - max_len)
  local removed = 0
  for place, entry in ipairs(redis.call('XRANGE', K.dead, '-', '+', 'COUNT', limit)) do
    local died = tonumber(string.match(entry[1], '^%d+'))
    if place > surplus and died > now - max_age then break end
    removed = removed + forget(entry[1])
  end
  return removed
end

local function field(flat, name)
  for i = 1, #flat, 2 do if flat[i] == name then return flat[i + 1] end end
end

local function drop_consumers(stream, room)
  local dropped = 0
  local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, GROUP)
  if consumers.err then return 0 end
  for _, consumer in ipairs(consumers) do
    if dropped >= room then break end
    if field(consumer, 'pending') == 0 and field(consumer, 'idle') > tonumber(idle) then
      redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, field(consumer, 'name'))
      dropped = dropped + 1
    end
  end
  return dropped
end

-- Removes names without a subscriber: of executors that were killed, or that another server has forgotten in a failover.
-- An error is a table without elements: then no name is removed.
local function drop_sleepers(sleepers)
  local names, channels = redis.pcall('SRANDMEMBER', sleepers, limit), {}
  for i, name in ipairs(names) do channels[i] = bell_of(name) end
  local heard = redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(channels))
  for i, name in ipairs(names) do
    if heard[2 * i] == 0 then redis.call('SREM', sleepers, name) end
  end
end

local removed = trim_dlq()
if removed > 0 then redis.pcall('HINCRBY', K.counters, 'purged', removed) end
local dropped = 0
for _, lane in ipairs(LANES) do dropped = dropped + drop_consumers(K[lane], limit - dropped) end
drop_sleepers(K.sleepers)
drop_sleepers(K.halted)
for _, lane in ipairs(PRIORITIES) do drop_sleepers(sleepers_of(lane)) end
return {removed, dropped}
