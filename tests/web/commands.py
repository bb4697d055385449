"""The commands that clients send to a server, one by one: MONITOR, without what scripts do inside."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from fennelq.broker.scripts import script
from tests.kit.server import Server

_LINE: Final = re.compile(rb'^\+?[\d.]+ \[\d+ [^\]]*\] "([^"]*)"(?: "([^"]*)")?')
_LUA: Final = re.compile(rb"^\+?[\d.]+ \[\d+ lua\]")


_CONNECTING: Final = ("HELLO", "CLIENT", "AUTH", "SELECT", "PING")


class Commands(list[str]):
    """The commands, in upper case; a call of a script has its name, or `SCRIPT`."""

    @property
    def surveys(self) -> int:
        """The calls of the script that counts a queue."""
        return self.count("survey")

    @property
    def others(self) -> list[str]:
        """All further commands."""
        return [one for one in self if one != "survey"]


@asynccontextmanager
async def commands_of(server: Server) -> AsyncGenerator[Commands]:
    """Within the block, every command is added to the list. The list is complete after the block."""
    found, survey = Commands(), script("survey").sha
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"MONITOR\r\n")
    assert await reader.readline() == b"+OK\r\n"
    try:
        yield found
        with server.client() as client:
            redis: Any = client
            await asyncio.to_thread(redis.echo, "the end of the commands")
        async with asyncio.timeout(30):
            while b"the end of the commands" not in (line := await reader.readline()):
                if (match := _LINE.match(line)) and not _LUA.match(line):
                    name = match[1].decode().upper()
                    script_called = name.startswith("EVALSHA") and (match[2] or b"").decode() == survey
                    if name in _CONNECTING:
                        continue
                    found.append("survey" if script_called else name)
    finally:
        writer.close()
