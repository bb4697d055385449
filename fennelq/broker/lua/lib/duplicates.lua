-- What a call gets whose idempotency key another job holds.
--@include now, keys, lane, due, later, entries, lines, idempotency

-- Most calls have no key, so the functions for duplicates are made when the first key is met.
local duplicate_of

local function make_duplicate_of()
  --@paste holder, replace
  -- The job that a call with this key gets; nil when the key is free.
  --
  -- A call that replaces the call of a waiting job leaves its id there, so that it does nothing when it is repeated because
  -- the reply was lost: even if that job has begun, and the key is free.
  function duplicate_of(name, job, args, due, more)
    local holder, f = holder_of(name)
    if not holder or f[F.latest_call] == job then return holder end
    if not f.holds then return end
    if (more.duplicate == 'replace' or more.wait or more.held == '^') and (f.kind == '<' or f.kind == '^') then
      replace(holder, f, job, args, more, more.wait and due_at(due))
    end
    return holder
  end
end
