-- Twins: second copies of jobs whose run takes too long. `double` adds another entry of the job, with the same delivery
-- number, so that a second executor runs it as well. The first run that succeeds ends the job. Its end removes the entry of
-- the other, whose executor can then settle nothing.
--
-- The record's place names one copy, as for every job, and the field `twin` the other:
--
--     s/17-0                 the twin waits in its lane
--     s/17-0 berta 17950     it runs: its executor, and when it began
--     -                      its run is over. A job runs twice at most, until it is retried or replayed: otherwise one
--                            that kills its executors could be doubled again and again, and no recovery would count a
--                            delivery. A twin that never ran leaves no such mark.
--
-- A copy that ends without success, is handed back or is recovered is dropped while the other one runs: the job is then
-- that other one. It costs neither a try nor a delivery. If the twin only waits, it is removed, and the job goes on as
-- any other. The record counts the starts of both.
--
-- Most calls of a script meet no job with a twin, so the functions are made when the first one is met.
--@include now, keys, run, counts, settling

local twins_made

local function twins()
  if twins_made then return twins_made end
  local made = {}
  twins_made = made
  --@paste history, bell

  -- The token of the twin; when it runs, also its executor and when it began.
  local function parts_of(twin)
    local owner, begun = string.match(twin, '^%S+ (.*) (%d+)$')
    return string.match(twin, '^%S+'), owner, begun
  end

  local function runs(twin)
    local token, owner = parts_of(twin)
    local lane, entry = split(token)
    local there = owner and redis.pcall('XRANGE', K[lane], entry, entry)
    return there and #there == 1
  end

  -- Swaps the two copies: the record's place names the one that was the twin, and the twin is the one that it named
  -- before. Returns the new value of `twin`.
  local function exchange(record, twin)
    local token, owner, begun = parts_of(twin)
    local known = redis.call('HMGET', record, F.place, F.run)
    local other, since, starts = run_of(known[2])
    local now_twin = (known[1] or '-') .. ' ' .. (other or '') .. ' ' .. (since or 0)
    redis.call('HSET', record, F.place, token, F.run, owner .. ' ' .. begun .. ' ' .. starts, F.twin, now_twin)
    return now_twin
  end

  -- Removes the entry of a twin. If it has run, the history says how that ended.
  local function remove(job, twin, what, more)
    local token, owner, begun = parts_of(twin)
    local lane, entry = split(token)
    if not lane then return end
    redis.pcall('XACK', K[lane], GROUP, entry)
    redis.pcall('XDEL', K[lane], entry)
    removed_copies = removed_copies or {}
    removed_copies[token] = true
    if owner then write_line(job, what, more, owner .. ' ' .. begun .. ' 0') end
    return owner, lane, entry
  end

  -- The twin is gone. `ran` is set when it has run.
  local function forget(record, ran)
    if ran then redis.call('HSET', record, F.twin, '-') else redis.call('HDEL', record, F.twin) end
  end

  -- Whether this is the token of the twin, and its run has begun.
  function made.is_run(twin, place)
    local token, owner = parts_of(twin)
    return token == place and owner ~= nil
  end

  -- Drops a copy that does not end the job. Returns false when it is the only one that runs.
  function made.drop(record, job, place, what, more)
    local twin = redis.call('HGET', record, F.twin)
    if not twin then return false end
    if parts_of(twin) ~= place then
      if redis.call('HGET', record, F.place) ~= place or not runs(twin) then return false end
      twin = exchange(record, twin)
    end
    forget(record, remove(job, twin, what, more))
    return true
  end

  -- How a run without success ended, for the history, by its outcome.
  local ENDING = {R = 'failed', D = 'failed', Z = 'snoozed', G = 'rate_limited', U = 'unknown_task'}

  local function drop_unless_asked(record, job, place, kind, value, why)
    if why then return made.claim(record, place) end
    local _, failure = pcall(cjson.decode, value)
    local error_type = type(failure) == 'table' and failure.type or nil
    local dropped = made.drop(record, job, place, ENDING[kind], error_type)
    if dropped then redis.call('HSET', record, F.settled_by, place) end
    return dropped
  end

  -- Whether a run without success is only dropped, because the other one goes on. When the job was asked to stop, the first
  -- copy that stops ends it. In a pcall: an outcome is being written.
  function made.is_dropped(...)
    local ok, dropped = pcall(drop_unless_asked, ...)
    return ok and dropped
  end

  -- The run with this token is about to end the job: from now on the record's place names it.
  function made.claim(record, place)
    local twin = redis.call('HGET', record, F.twin)
    if twin and made.is_run(twin, place) then exchange(record, twin) end
  end

  -- A run of the job is over, and no other run goes on. After a success, the record still names the other copy.
  function made.over(record, job, twin, how)
    if made.is_run(twin, settling) then
      twin = exchange(record, twin)
      count('twin_first')
    end
    local owner, lane, entry = remove(job, twin, 'outrun')
    if owner then tell(owner, 'outrun ' .. lane .. ' ' .. entry) end
    if how ~= 'again' or twin ~= '-' then forget(record) end
  end

  -- A client asks the job to stop. A twin that only waits is removed.
  function made.ask_to_stop(record, job, twin, reason)
    local token, owner = parts_of(twin)
    local lane, entry = split(token)
    if owner then
      tell(owner, 'stop ' .. lane .. ' ' .. entry .. ' ' .. reason)
    else
      forget(record, remove(job, twin))
    end
  end

  -- Whether this entry may start as the twin: not on the executor that runs the job already.
  function made.may_start(f, place, executor)
    return parts_of(f[F.twin]) == place and f[F.status] == 'X' and not f[F.stopping] and run_of(f[F.run]) ~= executor
  end

  -- It starts. `run` is the job's own run, which stays what it is; only the number of starts grows.
  function made.start(record, place, executor, begun, run)
    local owner, since, starts = run_of(run)
    redis.call('HSET', record, F.run, (owner or '') .. ' ' .. (since or 0) .. ' ' .. starts + 1, F.twin, place .. ' ' .. executor .. ' ' .. begun)
  end

  return made
end
