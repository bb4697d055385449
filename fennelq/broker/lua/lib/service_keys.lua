-- The keys of a service, which declares schedules in its code. One has its schedules, the other has the names that it
-- declares although they belong to another service. `cron:sources` has further facts about each service: digest, heard,
-- seen, legacy, at, round, sweep.
local function schedules_of(service) return prefix .. 'cron:of:' .. service end
local function denied_to(service) return prefix .. 'cron:denied:' .. service end
