"""The executors of an app for the tests of verbs: they run verbs on them and read their keys directly."""

from __future__ import annotations

from typing import Any, cast

import orjson

from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys
from fennelq.broker.verbs.executors import Present
from tests.broker.desk import APP, Bench, shown
from tests.kit.clock import ServerClock
from tests.kit.server import Server

NOW = 1_795_000_000_000
RECENT = 10_000
HOUR = 3_600_000


class Fleet(Bench[AppKeys]):
    """The executors of the app `shop`, on a server whose clock stands still."""

    def __init__(self, server: Server, clock: ServerClock) -> None:
        super().__init__(server, AppKeys(APP))
        self.clock = clock
        clock.stop_at(NOW)

    def present(self, executor: str, facts: bytes = b'{"host":"web-1"}', recent_ms: int = RECENT) -> Present:
        return self.do(verbs.executors.present, executor, facts, recent_ms)

    def died(self, executor: str, fate: str = "killed by SIGKILL", recent_ms: int = RECENT) -> int:
        return self.do(verbs.executors.died, executor, fate, recent_ms)

    def absent(self, *executors: str) -> int:
        return self.do(verbs.executors.absent, executors)

    def facts(self) -> dict[str, dict[str, Any]]:
        known = self.broker.ask(verbs.executors.known_executors(APP))
        return {executor: orjson.loads(facts) for executor, facts in known.items()}

    def alive(self) -> dict[str, int]:
        """Executor → when it was last present."""
        reply = cast("Any", self.redis.zrange(self.keys["alive"], 0, -1, withscores=True))
        return {shown(executor): int(moment) for executor, moment in reply}

    def deaths(self) -> dict[str, str]:
        """Executor → when and how it ended."""
        reply = cast("dict[bytes, bytes]", self.redis.hgetall(self.keys["deaths"]))
        return {shown(executor): shown(fate) for executor, fate in reply.items()}
