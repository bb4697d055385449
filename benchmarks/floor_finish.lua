-- The floor's only script: stores a batch of results, then acknowledges and deletes their entries.
-- KEYS: stream   ARGV: group, result TTL in ms, then per job: entry id, result key, result
local stream, group, ttl = KEYS[1], ARGV[1], ARGV[2]
local entries = {}
for first = 3, #ARGV, 3 do
  entries[#entries + 1] = ARGV[first]
  redis.call('RPUSH', ARGV[first + 1], ARGV[first + 2])
  redis.call('PEXPIRE', ARGV[first + 1], ttl)
end
redis.call('XACK', stream, group, unpack(entries))
redis.call('XDEL', stream, unpack(entries))
return #entries
