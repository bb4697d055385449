-- The letters of what is paused; empty when nothing is, or the key describes no pause.
--@include paused
local pausing = paused and string.match(paused .. '\n', '^(c?e?)\n') or ''
