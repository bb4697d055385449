-- Whether an operation may act on a job that it has found. The search and the act are two steps: in between, the job may have
-- moved on, or ended and been replaced by another one with the same key. `states` has the states that the operation asks
-- for, with spaces around each, and is '' when it asks for none; `sent_until` is its bound, or ''.
local STATE = {X = 'running', L = 'scheduled', R = 'retry'}

local function state_of(f)
  if f[F.status] and f[F.status] ~= 'Q' then return STATE[f[F.status]] end
  return f[F.place] == 'line' and 'limited' or 'waiting'
end

local function is_chosen(f)
  if states == '' then return true end
  local state = state_of(f)
  if not state or not string.find(states, ' ' .. state .. ' ', 1, true) then return false end
  return sent_until == '' or (tonumber(f[F.created]) or 0) <= tonumber(sent_until)
end
