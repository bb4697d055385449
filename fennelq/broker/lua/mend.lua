-- mend: finds slots that no job holds, and lines that no script will call, and puts them right.
--
-- Every script gives back what it took. So there is nothing to find unless a record, an entry or a key was deleted by hand,
-- or an executor of an earlier version has ended a job. It matters only where jobs wait, so the lines are walked, a page per
-- call. Of each gate, `holders` slots are looked at.
--
-- It also counts the jobs in the lines, a page per call, and puts the counter `parked` right at the end of the walk: it
-- would be wrong for ever after a line was deleted by hand. Jobs come and go during a walk of several pages, so the
-- count is only known to lie between the smallest and the largest value that the counter should have had. A counter
-- between these two values stays as it is. Otherwise the script adds the difference to it, and does not set it, because
-- other scripts change the counter as well. So the counter is exact if no job moves; otherwise the next walk brings it
-- closer.
--
-- Returns {slots given back, more 0/1, the gates (at most NAMED)}. An error in one line is counted as `mend_failed` and does
-- not stop the walk. After a cursor that Redis refuses, the next walk begins anew.
--
--@args prefix, limit, holders
--@include now, keys, lines, counts
--@flags allow-oom

local NAMED = 20

-- The jobs of this page. The count so far is stored with the cursor to which it belongs: a worker of an earlier version may
-- have walked a page without counting. Not to be called before the moves of this script are written.
local function count_page(names, cursor, next_cursor)
  local parked = tonumber(redis.pcall('HGET', K.counters, 'parked') or 0)
  local at, sum, least, most = string.match(redis.call('HGET', K.cursors, 'parked') or '', '^(%d+) (%d+) (%-?%d+) (%-?%d+)$')
  redis.call('HDEL', K.cursors, 'parked')
  if not parked or cursor ~= '0' and at ~= cursor then return end
  if cursor == '0' then sum, least, most = 0, parked, parked end
  for i = 1, #names, 2 do
    sum = sum + (tonumber(redis.pcall('ZCARD', prefix .. 'line:' .. names[i])) or 0)
  end
  sum, least, most = tonumber(sum), math.min(least, parked), math.max(most, parked)
  if next_cursor ~= '0' then
    redis.call('HSET', K.cursors, 'parked', table.concat({next_cursor, sum, least, most}, ' '))
  elseif redis.call('EXISTS', K.lines) == 0 then
    redis.pcall('HDEL', K.counters, 'parked')
  elseif sum < least or sum > most then
    redis.pcall('HINCRBY', K.counters, 'parked', sum - (sum < least and least or most))
  end
end

local given_back, gates = 0, {}
local cursor = redis.call('HGET', K.cursors, 'lines') or '0'
local page = redis.pcall('HSCAN', K.lines, cursor, 'COUNT', limit)
if page.err then
  redis.call('HDEL', K.cursors, 'lines')
  return page
end
for i = 1, #page[2], 2 do
  -- Opening one gate may have called another line of this page.
  local id = redis.call('HGET', K.lines, page[2][i])
  if id then
    local ok, cleared = pcall(lines().mend, page[2][i], id, tonumber(holders))
    if not ok then count('mend_failed') end
    if ok and cleared > 0 then
      given_back = given_back + cleared
      if #gates < NAMED then gates[#gates + 1] = id end
    end
  end
end
if page[1] == '0' then redis.call('HDEL', K.cursors, 'lines') else redis.call('HSET', K.cursors, 'lines', page[1]) end
if given_back > 0 then count('slots_mended', given_back) end
wake_sleepers()
count_page(page[2], cursor, page[1])
write_counts()
return {given_back, page[1] == '0' and 0 or 1, gates}
