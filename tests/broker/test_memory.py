"""What a queue costs in Redis while it has no job: there may be a hundred thousand."""

from __future__ import annotations

from statistics import median
from typing import Final, cast

import pytest

from fennelq.broker import verbs
from tests.broker.desk import Desk, a_job
from tests.kit.server import Kind, Server

pytestmark = pytest.mark.both_servers

WITHOUT_JOBS: Final[dict[Kind, int]] = {"valkey": 100, "redis": 250}
"""Bytes of a queue that has had no job, and one executor."""
MOST: Final[dict[Kind, int]] = {"valkey": 700, "redis": 1300}
"""Bytes of a queue that has run jobs of the normal priority. Redis 7.0 needs more for each stream, group and set."""


EXECUTOR: Final = "web-7f9c-12345-9d2f4c6b8a"


def cost(desk: Desk) -> dict[str, int]:
    """The bytes of each key of the queue."""
    names = cast("list[bytes]", desk.redis.keys(f"{desk.keys.prefix}*"))
    return {
        name.decode().removeprefix(desk.keys.prefix): cast("int", desk.redis.memory_usage(name, samples=0))
        for name in sorted(names)
    }


def have_run_a_job(desk: Desk) -> None:
    """A job has run, its record and its result have expired, and an executor sleeps."""
    desk.enqueue(a_job())
    (delivery,) = desk.fetch(EXECUTOR, sleeps=True).deliveries
    desk.finish([delivery])
    desk.recover()
    desk.redis.delete(desk.keys.record("1"), desk.keys.result("1"))


def test_a_queue_that_has_had_no_job_costs_its_sleepers(server: Server, server_kind: Kind) -> None:
    """The median of some queues: an allocator that has a larger free block hands it out as it is."""
    found: list[int] = []
    for number in range(31):
        with Desk.opened(server, f"idle-{number:02}") as desk:
            desk.fetch(EXECUTOR, sleeps=True)
            desk.do(verbs.executors.beat, EXECUTOR, 0, [])
            desk.recover()
            costs = cost(desk)
            assert costs.keys() == {"idle"}
            found.append(costs["idle"])
    print(f"{server_kind}: {sorted(found)}")
    assert median(found) <= WITHOUT_JOBS[server_kind]


def test_an_idle_queue_costs_little(server: Server, server_kind: Kind) -> None:
    """The median of some queues, for the same reason."""
    found: list[int] = []
    for number in range(31):
        with Desk.opened(server, f"idle-{number:02}") as desk:
            have_run_a_job(desk)
            costs = cost(desk)
            assert costs.keys() == {"s", "stats", "idle"}
            found.append(sum(costs.values()))
    print(f"{server_kind}: {sorted(found)}")
    assert median(found) <= MOST[server_kind]
