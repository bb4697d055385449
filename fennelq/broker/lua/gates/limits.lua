-- limits: lets a job with limits start if it gets all its slots, and sends it back to the front of its line if one of
-- its gates is shut. It takes slots, so it is the last gate.
--@include lines, refuse

function made.sent_back(lane, entry, job, deliveries, record, f)
  local home = home_of(lane .. '/' .. entry, f[F.lane])
  local shut = lines().pass(job, f[F.gates], home)
  if not shut then return false end
  lines().step_back(record, job, home, f[F.gates], shut, deliveries)
  drop(lane, entry)
  count('stepped_back')
  return true
end

function made.refuse_damaged(lane, entry, job, f, problem)
  local damage = lines().damage(f[F.gates], home_of(lane .. '/' .. entry, f[F.lane]))
  damage = damage or type(problem) == 'table' and problem.err or tostring(problem)
  refuse_failed(lane, entry, job, f, 'D', 'Broken', damage, 'broken')
end
--@check
if f[F.gates] then
  local ok, back = pcall(gates().sent_back, lane, entry, job, deliveries, record, f)
  if not ok then return gates().refuse_damaged(lane, entry, job, f, back) end
  if back then return end
end
