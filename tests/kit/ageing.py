"""Makes time pass for the TTLs of a server: records are kept longer than a test wants to wait."""

from __future__ import annotations

from typing import Final

from tests.kit.server import Server

_AGE: Final = """
local cursor, aged = '0', 0
repeat
  local page = redis.call('SCAN', cursor, 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    local left = redis.call('PTTL', key)
    if left >= 0 then
      redis.call('PEXPIRE', key, math.max(1, left - ARGV[1]))
      aged = aged + 1
    end
  end
until cursor == '0'
return aged
"""


def age(server: Server, seconds: float) -> int:
    """Every key that expires does so this much sooner; returns how many those are."""
    with server.client(timeout=30) as client:
        return int(str(client.eval(_AGE, 0, str(round(seconds * 1000)))))
