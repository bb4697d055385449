-- survey: counts the jobs of a queue by place, at one moment. It visits no single job, so its cost does not depend on
-- the number of jobs. It writes nothing, so a user of Redis who may only read can call it.
--
-- A command that does not fit the type of its key finds damage, and costs less than TYPE. So every key that has the same
-- name in all queues is read, also those of which no number is needed. Keys of a wrong type are listed in the reply. Any
-- other error, such as a missing permission, is the reply.
--
-- Of each lane: its length, how many of its entries are delivered and not settled, the last entry that was delivered, and
-- the first after that, whose job waits longest. An entry has the time at which its job entered the lane. Of the sorted
-- sets: the number of jobs, and when the first is due.
--
-- The call names none of its keys but one, because a name in a call costs more than one that is put together here.
--
-- Returns {now, 2 values each of `scheduled` and `retries`, dead, the newest entry of the DLQ, lines, what is paused,
-- the counters as one text with a line for each name and each value, {key of a wrong type, its type, …}, and for each
-- lane that is not empty its name and 4 values}. A missing value is ''. The cost of a reply grows with the number of
-- its values, so the counters are one text, and empty lanes are left out.
--
--@args prefix
--@include now, group_keys
--@flags no-writes

-- `ask` runs a command on a key. One function without any others, and a table that has room for one lane: calls, closures
-- and tables that grow would cost a fifth of all.
local function facts_by(ask, damaged)
  local key = prefix .. N.scheduled
  local scheduled, due = ask('ZCARD', key), ''
  if scheduled > 0 then due = ask('ZRANGE', key, 0, 0, 'WITHSCORES')[2] end
  key = prefix .. N.retries
  local retries, due_again = ask('ZCARD', key), ''
  if retries > 0 then due_again = ask('ZRANGE', key, 0, 0, 'WITHSCORES')[2] end
  key = prefix .. N.dead
  local dead, died = ask('XLEN', key), ''
  if dead > 0 then died = ask('XREVRANGE', key, '+', '-', 'COUNT', 1)[1][1] end
  ask('SCARD', prefix .. N.sleepers)
  ask('STRLEN', prefix .. N.swept)

  local lines, paused, limits = prefix .. N.lines, prefix .. N.paused, prefix .. N.limits
  local cursors, outbox, alarms = prefix .. N.cursors, prefix .. N.outbox, prefix .. N.alarms
  local halted, stopping = prefix .. N.halted, prefix .. N.stopping
  local ends, ends_read = prefix .. N.ends, prefix .. N.ends_read
  local in_lines, pause, rare = 0, '', nil
  -- Few queues have one of these, so one command looks for all of them. Without dead jobs, the index of them is rare too.
  if dead > 0 then
    rare = ask('EXISTS', lines, paused, cursors, outbox, limits, halted, stopping, alarms, ends, ends_read)
  else
    rare = ask('EXISTS', lines, paused, cursors, outbox, limits, halted, stopping, alarms, ends, ends_read, IN_GROUPS, LOOKS, NEWEST)
  end
  if rare > 0 then
    in_lines, pause = ask('HLEN', lines), ask('GET', paused) or ''
    ask('HLEN', cursors)
    ask('HLEN', outbox)
    ask('HLEN', limits)
    ask('SCARD', halted)
    ask('SCARD', stopping)
    ask('ZCARD', alarms)
    ask('XLEN', ends)
    ask('HLEN', ends_read)
  end
  if rare > 0 or dead > 0 then
    ask('HLEN', IN_GROUPS)
    ask('HLEN', LOOKS)
    ask('HLEN', NEWEST)
  end

  local counters = table.concat(ask('HGETALL', K.counters), '\n')
  local n = 11
  local facts = {
    now, scheduled, due, retries, due_again, dead, died, in_lines, pause, counters, damaged, nil, nil, nil, nil, nil,
  }
  for _, lane in ipairs(LANES) do
    local stream = prefix .. lane
    local length = ask('XLEN', stream)
    if length > 0 then
      local pending, last, oldest = 0, '0-0', ''
      for _, group in ipairs(ask('XINFO', 'GROUPS', stream)) do
        for i = 1, group[2] == GROUP and #group or 0, 2 do
          local fact = group[i]
          if fact == 'pending' then
            pending = group[i + 1]
          elseif fact == 'last-delivered-id' then
            last = group[i + 1]
          end
        end
      end
      if pending < length then
        local first = ask('XRANGE', stream, '(' .. last, '+', 'COUNT', 1)[1]
        if first then oldest = first[1] end
      end
      facts[n + 1], facts[n + 2], facts[n + 3], facts[n + 4], facts[n + 5] = lane, length, pending, last, oldest
      n = n + 5
    end
  end
  return facts
end

local ok, facts = pcall(facts_by, redis.call, '')
if ok then return facts end

-- A command has failed. Read again, and note the keys of a wrong type instead of their numbers. Any other error is the reply.
local function carefully()
  --@paste refusal
  local damaged, refused = {}, nil
  local function ask(command, key, ...)
    local found = redis.pcall(command, key, ...)
    if type(found) ~= 'table' or not found.err then return found end
    -- Without the right to this one, it reads them all.
    if command == 'EXISTS' then return 1 end
    if string.sub(found.err, 1, 9) == 'WRONGTYPE' then
      damaged[#damaged + 1], damaged[#damaged + 2] = key, redis.call('TYPE', key).ok
    else
      refused = found.err
    end
    -- A text that is 0 is read as missing.
    return command == 'HGETALL' and {} or 0
  end
  -- What it needs of a command that is refused may be missing.
  local _, found = pcall(facts_by, ask, damaged)
  return refused and refusal_of(refused) or found
end
return carefully()
