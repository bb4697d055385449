-- swept: whether `recover` would do nothing, because another executor has swept the queue in this interval and no job is
-- in quarantine. In a fleet that is so for most sweeps, and this costs a third of a `recover` that finds it out.
--
-- The mark of an executor of a version before lines is another one, and a TTL longer than any interval means that the
-- server's clock was set back: `recover` deals with both.
--
-- Returns 1 if it would do nothing, else 0.
--
--@args prefix, longest
--@flags no-writes

local function sweep_is_due()
  local mark = prefix .. N.swept
  if redis.call('GET', mark) ~= '2' or redis.call('PTTL', mark) > tonumber(longest) then return true end
  return redis.call('XLEN', prefix .. QUARANTINE) > 0
end
return sweep_is_due() and 0 or 1
