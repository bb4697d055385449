-- note: writes the progress of running jobs, and publishes it to the clients that follow them.
--
-- A run belongs to its caller while the record says that the job is executing at exactly this place, because a script
-- that moves a job writes its new place and status. So a run that was taken away, or has an outcome already, writes
-- nothing. The progress stays in the record, and ends with it.
--
-- A call that was sent earlier may arrive later: two calls take two turns of the loop, and a server that does not know
-- the script is asked twice. So a report that is older than the one in the record is dropped. Reports of one run have
-- the same first number, the start of the job, and the second number grows.
--
-- A message begins with a `+`, and goes to `followers` only. A client of an earlier version, which waits for the end of
-- the job, would take any other message for the end. A client that misses a message looks again after a few seconds,
-- so an error of PUBLISH (an ACL without channels) is ignored.
--
-- Without `allow-oom`: progress is the first thing to do without when the server is over maxmemory.
--
-- Returns, per job: 1 written, or older than what is there · 0 the caller does not own it any more · -1 its record
-- cannot be read.
--
--@args prefix, queue
--@each place, job, progress
--@include record

local function is_older(progress, known)
  local start, number = string.match(progress, '^%[(%d+),(%d+),')
  local known_start, known_number = string.match(known or '', '^%[(%d+),(%d+),')
  return start == known_start and tonumber(number) < tonumber(known_number)
end

local function note(place, job, progress)
  local record = record_of(job)
  local known = redis.pcall('HMGET', record, F.status, F.place, F.followers, F.progress, F.twin)
  if known.err then return -1 end
  if known[5] and string.match(known[5], '^%S+') == place then return 1 end
  if known[1] ~= 'X' or known[2] ~= place then return 0 end
  if is_older(progress, known[4]) then return 1 end
  redis.call('HSET', record, F.progress, progress)
  local message = '+' .. queue .. ':' .. job .. '\n' .. progress
  for channel in string.gmatch(known[3] or '', '%S+') do redis.pcall('PUBLISH', channel, message) end
  return 1
end

local answers = {}
for i = first, #ARGV, stride do answers[#answers + 1] = note(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
return answers
