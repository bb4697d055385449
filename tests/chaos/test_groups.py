"""The index of dead jobs, while jobs die of many causes, are replayed and removed, and executors are killed."""

from __future__ import annotations

import asyncio
import random

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import queue_keys
from fennelq.model.job import AnyJob
from tests.broker.desk import Bench
from tests.chaos import jobs, scale
from tests.chaos.account import drained
from tests.chaos.conftest import Figure
from tests.chaos.fleet import Fleet
from tests.chaos.load import call, send
from tests.kit.audit import problems
from tests.kit.server import Server
from tests.kit.waiting import eventually

pytestmark = pytest.mark.timeout(scale.of(240, long=1200))

NUMBER = scale.of(1_000, long=10_000)
KINDS = 200
ROUNDS = 4


def failing(app: object) -> list[AnyJob]:
    return [call(app, jobs.fail, number % KINDS) for number in range(NUMBER // ROUNDS)]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.audit(unfinished=True)
def test_the_index_of_dead_jobs_equals_a_recount_although_executors_are_killed(
    fleet: Fleet, server: Server, figure: Figure
) -> None:
    """The jobs of a killed executor are recovered, and die elsewhere."""
    dice = random.Random(13)
    fleet.start(processes=2)
    sent = dict[str, object]()
    for turn in range(ROUNDS):
        sent |= send(server.url, failing)
        if turn == ROUNDS // 2:
            eventually(lambda: dead(server) >= NUMBER // ROUNDS, within=60, what="some jobs are dead")
        victim = fleet.any(dice)
        if victim is not None:
            fleet.kill(victim)
        asyncio.run(operate(server.url, dice))
    drained(server, within=120)
    fleet.stop()
    with server.client() as redis:
        assert problems(redis) == []
    index = read(server)
    assert (index.is_complete, index.length) == (True, dead(server))
    groups = asyncio.run(groups_of(server.url))
    assert sum(groups.values()) == index.length
    figure(
        "groups",
        f"{index.length} dead jobs in {len(groups)} groups, after {ROUNDS} kills, replays and removals",
    )
    assert len(groups) > KINDS / 2


async def operate(url: str, dice: random.Random) -> None:
    """An operator replays some of the dead, and removes others."""
    async with jobs.app_of(redis_url=url) as app:
        for group in (await app.dlq.groups())[:20]:
            if dice.random() < 0.5:
                await app.dlq.replay(fingerprint=group.fingerprint, limit=3)
            else:
                await app.dlq.purge(fingerprint=group.fingerprint, limit=1)


async def groups_of(url: str) -> dict[str, int]:
    async with jobs.app_of(redis_url=url) as app:
        return {group.fingerprint: group.jobs for group in await app.dlq.groups()}


def read(server: Server) -> verbs.dead.GroupIndex:
    bench = Bench(server, queue_keys(jobs.NAME, "default"))
    try:
        return bench.do(verbs.dead.groups)
    finally:
        bench.close()


def dead(server: Server) -> int:
    return read(server).length
