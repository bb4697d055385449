-- ring: passes on messages about new entries. An executor calls it when it cannot take the jobs itself, because it has no
-- free slot or stops.
--
-- Returns how many lanes have woken another executor.
--
--@args prefix
--@each lane
--@include ring
--@flags allow-oom

local woken = 0
for i = first, #ARGV do
  if ring(ARGV[i]) then woken = woken + 1 end
end
return woken
