-- find: the jobs of some places of a queue that meet a filter, a step at a time. It writes nothing.
--
-- A step ends when it has looked at `records` jobs or at `bytes` of their records, or has `most` hits: so no step
-- blocks the server for long. The next step goes on after the last job of this one, even if that job has left its place
-- since. The end of a lane or a sorted set is fixed when a step begins with it: otherwise the search of a place to
-- which jobs come all the time would never end.
--
-- Places: `sched`, `retry`, `dlq` (the newest first), a lane, `run/` and a lane for the jobs that executors have taken from
-- it, `line:` and the name of a line. A job is at a place when its record names it. Of a dead job, the record is only read
-- when the filter asks for something that the entry does not have.
--
-- The filter is a JSON object. A list has values of which one must match; a list whose name begins with `no_` has
-- values of which none may match. Of `header` and `text`, all must match. A text has three parts: the text, its form
-- within JSON, and whether every encoder of JSON writes it in this form. Only then does its absence from the JSON prove
-- that the job does not have it. `headers` is the letter of the headers among the options of a job.
--
-- `from` is the cursor in the first of the places; '' for its beginning. A key that cannot be read ends its place, with an
-- error in the reply; a record that cannot be read is counted.
--
-- To look for a text takes time for every byte of the arguments: for a megabyte of one letter, ten milliseconds and more. So
-- a job with large arguments is a hit whatever texts the filter asks for, and the caller looks for them.
--
-- A job that was sent later than it is now is from before the clock of the server was set back. When it meets the filter but
-- for its bound `until`, it is counted: a person may see it in a list, and has to learn why it is left alone.
--
-- Returns {places that are done, cursor in the next of them, jobs looked at, records that cannot be read, error or '', hits:
-- job and entry or due time of each, the hits in which the caller has to look for the texts: their numbers from 0 on, jobs
-- that are ahead of the clock}.
--
--@args prefix, filter, from, most, records, bytes
--@each place
--@include now, run, group_keys
--@flags no-writes

local CHUNK, RECORD = 100, prefix .. 'j:'
-- What is done for every job uses locals: a global costs more.
local pcall, type, unpack, ask = pcall, type, unpack, redis.pcall

local want = cjson.decode(filter)
local looked, read, unreadable, problem, hits, found, unsure, ahead = 0, 0, 0, '', {}, 0, {}, 0
most, records, bytes = tonumber(most), tonumber(records), tonumber(bytes)

-- The job that is looked at: the fields of its record, its entry when it is dead, and what is decoded of its fields.
local f, dead, failure, headers
local task = ''

-- The fields to read, by their places in `f`. Each costs time for every job, so this has only those that the filter
-- needs. The first ones are those that the conditions need, and every readable record has the very first one.
local fields = {}
local function also(field)
  fields[#fields + 1] = field
  return #fields
end
local by_text = want.text or want.no_text
local by_failure = want.error or want.no_error or want.fp or want.no_fp
local by_header, by_run, by_key = want.header or want.no_header, want.on or want.no_on, want.key or want.no_key
local TASK = (want.task or want.no_task or by_failure or by_header or by_run or by_key) and also(F.task)
local short = #fields
local ARGUMENTS = by_text and also(F.arguments)
local OPTIONS = (by_text or by_header) and also(F.options)
local FAILURE = (by_text or by_failure) and also(F.failure)
local RUN = by_run and also(F.run)
local KEY = by_key and also(F.idempotency)
local needed = #fields
local CREATED = (want.since or want['until']) and also(F.created)
local PLACE, STATUS = also(F.place), also(F.status)
local RECORDS_OF_DEAD = OPTIONS or RUN or KEY

local NOTHING = {}

-- The table in a field; an empty one when the field is missing, or damaged: then `value` is the message of an error.
local function decoded(text)
  if not text then return NOTHING end
  local _, value = pcall(cjson.decode, text)
  return type(value) == 'table' and value or NOTHING
end

local function failure_of_job()
  failure = failure or decoded(f[FAILURE])
  return failure
end

local function headers_of_job()
  local options = not headers and decoded(f[OPTIONS])
  headers = headers or type(options[want.headers]) == 'table' and options[want.headers] or {}
  return headers
end

local find = string.find
local function has(text, part) return type(text) == 'string' and find(text, part, 1, true) ~= nil end

local function error_type() return dead and dead.e or failure_of_job().type or '' end

-- A failure without a fingerprint gets one here: see `lua/lib/groups`.
local function fingerprint()
  if error_type() == '' then return '' end
  local given, reason
  if dead then
    given, reason = dead.f, dead.y
  else
    given, reason = failure_of_job().f, failure_of_job().reason
  end
  return (group_of(given, tostring(reason or ''), task, tostring(error_type())))
end

local meets = {}

local sub, byte = string.sub, string.byte

-- By its whole name, or by the part after the last colon.
function meets.task(name)
  if task == name then return true end
  local colon = -1 - #name
  return byte(task, colon) == 58 and sub(task, colon + 1) == name and not find(name, ':', 1, true)
end

function meets.error(name)
  local found = tostring(error_type())
  return found == name or string.match(found, '[^.]*$') == name
end

function meets.fp(print) return fingerprint() == print end

function meets.on(name)
  local owner = run_of(f[RUN])
  return owner == name or owner ~= nil and string.sub(owner, 1, #name + 1) == name .. '.'
end

function meets.key(key) return string.sub(f[KEY] or '', 2) == task .. ':' .. key end

function meets.header(header)
  if header[3] and not has(f[OPTIONS], header[2]) then return false end
  return headers_of_job()[header[1]] == header[2]
end

local function in_headers(part)
  for name, value in pairs(headers_of_job()) do
    if has(name, part) or has(value, part) then return true end
  end
  return false
end

function meets.text(text)
  local part, within_json, same = text[1], text[2], text[3]
  local arguments, options, failed = f[ARGUMENTS], f[OPTIONS], f[FAILURE]
  if arguments and find(arguments, part, 1, true) or not same and has(arguments, within_json) then return true end
  if dead and has(dead.m, part) then return true end
  if options and (not same or has(options, part)) and in_headers(part) then return true end
  return failed and (not same or has(failed, part)) and has(failure_of_job().message, part)
end

-- The conditions of the filter besides states and times, the cheap ones first.
local conditions, of_texts = {}, {}

-- A condition on one value, or on several of which one must be met.
local function one_of(values, meet)
  local value = values[1]
  if #values == 1 then return function() return meet(value) end end
  return function()
    for _, other in ipairs(values) do if meet(other) then return true end end
    return false
  end
end

local compared = 0

local function add_conditions(values, meet, excluded)
  compared = compared + #values
  local one, list = one_of(values, meet), meet == meets.text and of_texts or conditions
  list[#list + 1] = excluded and function() return not one() end or one
end

for _, word in ipairs({'task', 'fp', 'error', 'on', 'key', 'header', 'text'}) do
  local every = word == 'header' or word == 'text'
  for _, value in ipairs(every and want[word] or {}) do add_conditions({value}, meets[word]) end
  if want[word] and not every then add_conditions(want[word], meets[word]) end
  if want['no_' .. word] then add_conditions(want['no_' .. word], meets[word], true) end
end

-- Every value is compared for each job, and every text with each byte, once or twice. At a byte where a text seems to begin,
-- all of it may be compared. All this makes a step shorter.
local work = 0
for _, texts in ipairs({want.text or {}, want.no_text or {}}) do
  for _, text in ipairs(texts) do work = work + (text[3] and 1 or 2) * (1 + #text[1] / 250) end
end
records = math.ceil(records / math.max(1, compared / 20))
bytes = bytes / math.max(1, work)
local large = bytes / 4

-- Whether a job meets every condition of a list, as a function; nil when there are none.
local function all_of(list)
  if #list < 2 then return list[1] end
  return function()
    for i = 1, #list do if not list[i]() then return false end end
    return true
  end
end

-- Few tasks have many jobs, so a condition on the task is computed once for each task.
local function by_name(condition)
  local known = {}
  return function()
    local met = known[task]
    if met == nil then
      met = condition()
      known[task] = met
    end
    return met
  end
end

-- The only field that is needed alone.
local only_task = needed == 1
local meets_fields, meets_texts = all_of(conditions), all_of(of_texts)
if only_task then meets_fields = by_name(meets_fields) end

local function meets_all()
  if meets_fields and not meets_fields() then return false end
  if not meets_texts then return true end
  if not f[ARGUMENTS] or #f[ARGUMENTS] <= large then return meets_texts() end
  unsure[#unsure + 1] = found
  return true
end

local function count_bytes(values)
  for i = short + 1, needed do
    local value = values[i]
    if value then read = read + #value end
  end
end

-- Most jobs do not meet the conditions. They are dismissed by the fields that the conditions need, which takes two thirds of
-- the time of reading all fields. Returns whether this job has to be looked at: it meets them, or its fields cannot be read.
local function may_be_hit(record)
  if only_task then
    task = ask('HGET', record, fields[1])
    return type(task) ~= 'string' or meets_fields()
  end
  local values = ask('HMGET', record, unpack(fields, 1, needed))
  if not values[1] then return true end
  count_bytes(values)
  f, task = values, TASK and values[TASK]
  if meets_fields and not meets_fields() then return false end
  return not meets_texts or #values[ARGUMENTS] > large or meets_texts()
end

-- Reads all fields of a record. Returns whether it names this place.
local number = #fields
local function load_record(record, place)
  local values = ask('HMGET', record, unpack(fields, 1, number))
  if not values[PLACE] then
    unreadable = unreadable + 1
    return false
  end
  f = values
  return values[PLACE] == place
end

local asked_for = {Q = want.waiting, X = want.running}

-- Whether a job at a place other than the dead-letter queue is a hit. In a lane, where it has an entry, its record tells
-- whether it runs. While at least half of the jobs are hits, none is dismissed.
local function is_hit(job, place, entry)
  looked, failure, headers = looked + 1, nil, nil
  local record = RECORD .. job
  local by_conditions = needed > 0 and 2 * found < looked
  if by_conditions and not may_be_hit(record) then return false end
  if not load_record(record, entry and place .. entry or place) then return false end
  if not by_conditions then count_bytes(f) end
  if entry and not asked_for[f[STATUS] or 'Q'] then return false end
  local created = CREATED and tonumber(f[CREATED]) or 0
  local is_late = created > (want['until'] or math.huge)
  if created < (want.since or 0) or is_late and created <= now then return false end
  if TASK then task = f[TASK] or '' end
  if not is_late then return meets_all() end
  local sure = #unsure
  if meets_all() then ahead = ahead + 1 end
  unsure[sure + 1] = nil
  return false
end

local function is_dead_hit(entry)
  looked, failure, headers, dead, f = looked + 1, nil, nil, {}, {}
  for i = 1, #entry[2], 2 do dead[entry[2][i]] = entry[2][i + 1] end
  local place = 'dlq/' .. entry[1]
  if RECORDS_OF_DEAD then
    local is_here = load_record(RECORD .. (dead.i or ''), place)
    if f[PLACE] and not is_here then return false end
    count_bytes(f)
  end
  task = dead.t or ''
  return dead.i ~= nil and meets_all()
end

local function add(job, mark)
  hits[2 * found + 1], hits[2 * found + 2] = job, mark
  found = found + 1
end

local function is_over() return looked >= records or read >= bytes or found >= most end

-- How many to read at once: not many more than will be looked at.
local function chunk() return math.min(CHUNK, records - looked) end

-- Each of these looks at a place from a cursor on, and returns the cursor to go on from; nil when it is at the end.

-- `read` returns the next elements from `at` to `last`, and `look` looks at one. An element begins with its id.
local function in_stream(stream, from, read_some, look)
  local at, last = string.match(from, '^(%S+) (%S+)$')
  if not at then
    local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
    if not newest then return end
    at, last = '-', want.entries_until or newest[1]
  end
  while true do
    local asked = chunk()
    local some = read_some(at, last, asked)
    for i = 1, #some do
      look(some[i])
      if is_over() then return '(' .. some[i][1] .. ' ' .. last end
    end
    if #some < asked then return end
    at = '(' .. some[asked][1]
  end
end

local function in_lane(lane, from)
  local place = lane .. '/'
  return in_stream(K[lane], from, function(at, last, asked)
    return redis.call('XRANGE', K[lane], at, last, 'COUNT', asked)
  end, function(entry)
    local id, job = entry[1], entry[2][2]
    if is_hit(job, place, id) then add(job, id) end
  end)
end

local function taken_from(lane, from)
  return in_stream(K[lane], from, function(at, last, asked)
    local some = redis.pcall('XPENDING', K[lane], GROUP, at, last, asked)
    if not some.err then return some end
    -- No executor has read the lane.
    if string.sub(some.err, 1, 7) == 'NOGROUP' then return {} end
    error(some)
  end, function(pending)
    local id = pending[1]
    local entry = redis.call('XRANGE', K[lane], id, id)[1]
    if entry and is_hit(entry[2][2], lane .. '/', id) then add(entry[2][2], id) end
  end)
end

local function in_dead(from)
  local at = from ~= '' and from or want['until'] or '+'
  repeat
    local asked = chunk()
    local some = redis.call('XREVRANGE', K.dead, at, want.since or '-', 'COUNT', asked)
    for _, entry in ipairs(some) do
      at = '(' .. entry[1]
      if is_dead_hit(entry) then add(dead.i, entry[1]) end
      if is_over() then return at end
    end
  until #some < asked
end

-- Members with the same score are in the order of their bytes. Lua compares texts by the language of the server.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = byte(one, i), byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

-- The number of members up to this one, even if it is not there any more.
local function passed_over(set, score, member)
  local low, high = redis.call('ZCOUNT', set, '-inf', '(' .. score), redis.call('ZCOUNT', set, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_before(member, redis.call('ZRANGE', set, middle, middle)[1]) then high = middle else low = middle + 1 end
  end
  return low
end

local function in_set(set, place, from)
  local score, member, last = string.match(from, '^(%S+) (%S+) (%S+)$')
  if not score then last = redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2] end
  local rank = score and passed_over(set, score, member) or 0
  repeat
    local asked = chunk()
    local some = redis.call('ZRANGE', set, rank, rank + asked - 1, 'WITHSCORES')
    for i = 1, #some, 2 do
      member, score = some[i], some[i + 1]
      if tonumber(score) > tonumber(last) then return end
      if is_hit(member, place) then add(member, score) end
      if is_over() then return score .. ' ' .. member .. ' ' .. last end
    end
    rank = rank + asked
  until #some < 2 * asked
end

local function walk(place, from)
  dead = nil
  if place == 'sched' then return in_set(K.scheduled, place, from) end
  if place == 'retry' then return in_set(K.retries, place, from) end
  if place == 'dlq' then return in_dead(from) end
  local kind, name = string.match(place, '^(%a+)[:/](.+)$')
  if kind == 'line' then return in_set(prefix .. place, 'line', from) end
  if kind == 'run' then return taken_from(name, from) end
  return in_lane(place, from)
end

local done, cursor = 0, ''
for i = first, #ARGV do
  local ok, at = pcall(walk, ARGV[i], i == first and from or '')
  if not ok then problem = type(at) == 'table' and at.err or tostring(at) end
  cursor = ok and at
  if cursor then break end
  done = done + 1
end
return {done, cursor or '', looked, unreadable, problem, hits, unsure, ahead}
