-- A job that cannot be settled with its outcome (a record of a wrong type, an outcome that cannot be read) becomes
-- dead, with the reason `broken`: its entry is already acknowledged, so an error here would lose the job. First, this
-- undoes the writes of the failed settling.
--@include now, keys, lane, twins, dead
local function bury(record, job, place, problem)
  local text = type(problem) == 'table' and problem.err or tostring(problem)
  if redis.call('TYPE', record).ok ~= 'hash' then redis.call('DEL', record, result_of(job)) end
  twins().claim(record, place)
  local tries = tonumber(redis.call('HGET', record, F.tries)) or 0
  local failure = cjson.encode({type = 'Broken', message = string.sub(text, 1, 500), traceback = '', reason = 'broken', tries = tries})
  local home, half = split(redis.call('HGET', record, F.place))
  if home == 'dlq' then
    local written = redis.call('XRANGE', K.dead, half, half)[1]
    if redis.call('XDEL', K.dead, half) == 1 then
      --@paste leave_group
      leave_group(written)
    end
  end
  redis.pcall('ZREM', K.retries, job)
  redis.pcall('ZREM', K.scheduled, job)
  keep_lane(record, (split(place)))
  redis.call('PERSIST', record)
  redis.call('DEL', result_of(job))
  write_dead(record, job, place, failure, 'Broken', text, 'broken', failure_ttl)
end
