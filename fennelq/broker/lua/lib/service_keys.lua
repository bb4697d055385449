-- The keys of a service, which declares schedules in its code: its schedules, and those that another service keeps from it.
-- `cron:sources` holds the rest that is known of each service (digest, heard, seen, legacy, at, round, sweep).
local function schedules_of(service) return prefix .. 'cron:of:' .. service end
local function denied_to(service) return prefix .. 'cron:denied:' .. service end
