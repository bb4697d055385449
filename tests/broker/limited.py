"""Jobs with limits on a desk."""

from __future__ import annotations

from typing import Any, cast

from tests.broker.desk import Desk, a_job, shown

ONE = "c1:account/17"


def send(desk: Desk, *keys: str, gates: str = ONE, **given: Any) -> None:
    for key in keys:
        assert desk.enqueue(a_job(key, gates=gates, **given)) == [1]


def taken(desk: Desk, free: int = 100, consumer: str = "anna") -> list[str]:
    return [one.key for one in desk.take(consumer, free)]


def in_line(desk: Desk, gates: str = "c:account/17", lane: str = "s") -> list[str]:
    name = f"{desk.keys.prefix}line:{gates}@{lane}"
    return [shown(key) for key in cast("Any", desk.redis.zrange(name, 0, -1))]


def calls(desk: Desk, command: str) -> int:
    """How often the server has run this command."""
    stats: dict[str, Any] = desk.redis.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])
