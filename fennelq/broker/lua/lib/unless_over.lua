-- The outcome of a job whose run did not succeed and which must not run again: it is cancelled. A success stays a
-- success, because the work is done. `number` is the ttl of a failure only if the job is dead.
--
-- It was asked to stop, or it has an idempotency key of the kind `^`, and a newer job has taken this key while it ran: an
-- older call must not run after a newer one. A newer job that has not begun and will not run (it was cancelled or dropped, or
-- has expired) does not count, nor does one that is gone: then this job is the newest again, and takes the key.
--
-- Returns nil when the run is only dropped, because another copy of the job goes on. If another service has refused the
-- run, the rates of the job stop all the same.
--@include now, keys, idempotency, twins, stop_rates

-- Few jobs have such a key, so the functions are made when a newer job is met.
local is_superseded

local function make_is_superseded()
  --@paste holder
  function is_superseded(name, job)
    local newer, f = holder_of(name)
    if newer and (f.holds or begun(f)) then return true end
    -- A pcall: the entry is acknowledged, so an error here would lose the job.
    redis.pcall('SET', idem_of(name), job)
    return false
  end
end

local function unless_over(record, job, place, kind, number, value)
  local known = redis.pcall('HMGET', record, F.stopping, F.idempotency, F.twin)
  if known[3] and twins().is_dropped(record, job, place, kind, value, known[1]) then
    -- A pcall: the entry is acknowledged.
    if kind == 'G' then pcall(stop_rates, record, job, place, number, true) end
    return
  end
  local why, name = known[1], kind ~= 'D' and string.match(known[2] or '', '^%^(.+)$')
  if not why and name and named_by(name) ~= job then
    if not is_superseded then make_is_superseded() end
    if is_superseded(name, job) then why = 'superseded' end
  end
  if not why then return kind, number, value end
  return 'K', kind == 'D' and number or failure_ttl, cjson.encode({cancelled = why})
end
