"""A server whose clock a test can move or stop: due times, expiry, schedules and stamps follow it.

TTLs, idle times and leases do not: those are the server's own, and only `jump` moves them along. The offset is a key of
the server, so whatever asks this server, in this process, lives in its time.
"""

from __future__ import annotations

import pkgutil
from functools import partial
from importlib import import_module
from typing import Final

import pytest
import redis

from fennelq.broker import verbs
from fennelq.broker.keys import GROUP
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command

_KEY: Final = "kit:clock"

VARIANT: Final = f"""
local redis = setmetatable({{call = function(command, ...)
  local reply = redis.call(command, ...)
  if command ~= 'TIME' then return reply end
  local set = redis.call('GET', '{_KEY}') or '+0'
  local ms = reply[1] * 1000 + math.floor(reply[2] / 1000)
  ms = string.sub(set, 1, 1) == '@' and tonumber(string.sub(set, 2)) or ms + tonumber(set)
  return {{math.floor(ms / 1000), (ms % 1000) * 1000}}
end}}, {{__index = redis}})
"""
"""Put before a script: what it takes for the time is the kit's."""

_JUMP: Final = f"""
local by = tonumber(ARGV[1])
redis.call('SET', '{_KEY}', string.format('%+d', tonumber(redis.call('GET', '{_KEY}') or '0') + by))
local cursor = '0'
repeat
  local page = redis.call('SCAN', cursor, 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    local left = redis.call('PTTL', key)
    if left >= 0 then redis.call('PEXPIRE', key, left - by) end
    local pending = {{}}
    if redis.call('TYPE', key).ok == 'stream' then
      pending = redis.pcall('XPENDING', key, '{GROUP}', '-', '+', 10000)
    end
    for _, entry in ipairs(pending) do
      redis.call('XCLAIM', key, '{GROUP}', entry[2], 0, entry[1], 'IDLE', math.max(0, entry[3] + by), 'JUSTID')
    end
  end
until cursor == '0'
"""

_NOW: Final = f"{VARIANT} local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000"


class ServerClock:
    """Moves the clock of one server, for the scripts of this process."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def now(self) -> int:
        """Milliseconds since the epoch, as scripts see it."""
        return int(str(self._client.eval(_NOW, 0)))

    def stop_at(self, ms: int) -> None:
        """The clock stands at this moment, until a test moves it."""
        self._client.set(_KEY, f"@{ms}")

    def jump(self, ms: int) -> None:
        """Sets the server's clock, forward or (below 0) back: TTLs and idle times follow, too."""
        self._client.eval(_JUMP, 0, str(ms))

    def pass_by(self, ms: int) -> None:
        """So much time passes at once; a clock that stands goes on standing."""
        reply = self._client.get(_KEY)
        text = reply.decode() if isinstance(reply, bytes) else "+0"
        self._client.set(_KEY, f"@{int(text[1:]) + ms}" if text[0] == "@" else f"{int(text) + ms:+}")


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every verb of this process uses the clock that can be moved."""
    for module in pkgutil.iter_modules(verbs.__path__, f"{verbs.__name__}."):
        room = import_module(module.name)
        if hasattr(room, "script"):
            monkeypatch.setattr(room, "script", partial(script, variant=VARIANT))
    monkeypatch.setattr(verbs.server, "now", lambda: Command(["EVAL", _NOW, 0], int))
