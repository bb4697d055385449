-- meter: adds the runs, run times and wait times that an executor has counted to those of the queue.
--
-- Each ten minutes have a hash. A field is the name of a task, `|`, what was measured (r run, w wait) and the number of the
-- bucket; its value is the number of durations in the bucket. A field with the letter of an outcome (S, R, Z, D, K) in
-- place of a measure has the number of runs that ended so.
--
-- Each hour has a hash as well. A field is the minute of the hour, `|` and the letter of an outcome; its value is the number
-- of runs of all tasks. In a report, such a field begins with `|` and the minute since the epoch. The executor derives the
-- minute from the server's clock at its last fetch. When that minute cannot be right, because a clock was set or the report
-- is older than what is kept, the current minute counts.
--
-- A report whose reply was lost is sent again with the same number. The number of an executor's latest report is kept, so
-- that no report is added twice. `life` distinguishes two processes with the same name.
--
-- Without `allow-oom`: when the server is over maxmemory, the executor keeps its counts, and sends them later.
--
-- A hash has at most FIELDS fields. Further tasks are counted as `other`.
--
-- Returns 1, or 0 when the report was added before; an error with the name of the key when that has a wrong type.
--
--@args prefix, executor, life, number, kept
--@each field, count
--@include now

local WINDOW, FIELDS, REMEMBERED = 600000, 20000, 3600000

local times = prefix .. 'm:' .. string.format('%.0f', math.floor(now / WINDOW))
local latest = prefix .. 'metered:' .. executor

local function was_added()
  local known = redis.pcall('GET', latest)
  if type(known) ~= 'string' then return false end
  local of, last = string.match(known, '^(%S+) (%d+)$')
  return of == life and tonumber(last) >= tonumber(number)
end

local hours, this_minute = {}, math.floor(now / 60000)

-- The key and the field of a count of one minute; nil for another count.
local function place_of(name)
  local given, letter = string.match(name, '^|(%d+)|(%a)$')
  if not given then return nil end
  local minute = tonumber(given)
  if minute > this_minute or minute < this_minute - kept / 60000 then minute = this_minute end
  local hour = math.floor(minute / 60)
  return prefix .. 't:' .. string.format('%.0f', hour), string.format('%.0f', minute - 60 * hour) .. '|' .. letter
end

-- A value that is not a number is replaced: a person may have written it.
local function add(key, name, more)
  local total = redis.pcall('HINCRBY', key, name, more)
  if type(total) == 'table' then redis.call('HSET', key, name, more) end
end

local function is_hash(key)
  return type(redis.pcall('HLEN', key)) == 'number'
end

local function wrong_type(key)
  return redis.error_reply('WRONGTYPE ' .. key .. ' is not a hash: rename or delete it')
end

if not is_hash(times) then return wrong_type(times) end
for i = first, #ARGV, stride do
  local key = place_of(ARGV[i])
  if key then hours[key] = true end
end
for key in pairs(hours) do
  if not is_hash(key) then return wrong_type(key) end
end
if was_added() then return 0 end
redis.call('SET', latest, life .. ' ' .. number, 'PX', REMEMBERED)
local size = redis.call('HLEN', times)
for i = first, #ARGV, stride do
  local name, more = ARGV[i], ARGV[i + 1]
  local key, field = place_of(name)
  if key then
    add(key, field, more)
  else
    if size + (i - first) / stride >= FIELDS and redis.call('HEXISTS', times, name) == 0 then
      name = 'other' .. string.match(name, '|%w+$')
    end
    add(times, name, more)
  end
end
redis.call('PEXPIRE', times, kept)
for key in pairs(hours) do redis.call('PEXPIRE', key, kept) end
return 1
