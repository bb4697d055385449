"""A queue is paused while its executors sleep and work: nothing starts, no executor is woken in vain, nothing is moved.

No job depends on a message: when those of the resume are lost, every executor looks by itself within 5 seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final, cast

import pytest

from fennelq import App
from fennelq.broker.keys import GROUP, queue_keys
from fennelq.worker.executor import Executor
from tests.chaos import jobs, scale
from tests.chaos.conftest import Figure
from tests.chaos.sleepers import LOOK, TASK, Starts, all_asleep, executors, summary
from tests.kit.server import Server
from tests.kit.waiting import aeventually

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.timeout(scale.of(300, long=600)),
    *scale.servers(),
]

KEYS: Final = queue_keys(jobs.NAME, "default")
EIGHT: Final = 8


class Lane:
    """What Redis says about the jobs of the queue."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def entries(self) -> list[bytes]:
        """The entries of its lane. An entry that is handed back gets another id."""
        with self._server.client() as client:
            return [entry for entry, _ in cast("Any", client.xrange(KEYS["s"]))]

    def pending(self) -> int:
        """Entries that were delivered and not settled."""
        with self._server.client() as client:
            return int(cast("Any", client.xpending(KEYS["s"], GROUP))["pending"])

    def halted(self) -> set[str]:
        """The executors that sleep because the queue is paused."""
        with self._server.client() as client:
            return {name.decode() for name in cast("set[bytes]", client.smembers(KEYS["halted"]))}

    def messages(self) -> int:
        """How many messages scripts have sent to executors so far."""
        with self._server.client() as client:
            stats = cast("dict[str, dict[str, int]]", client.info("commandstats"))
        return stats.get("cmdstat_spublish", {"calls": 0})["calls"]

    def released(self) -> int:
        """How many jobs were handed back."""
        with self._server.client() as client:
            return int(cast("Any", client.hget(KEYS["stats"], "released")) or 0)


async def send(starts: Starts, app: App, numbers: Sequence[int]) -> None:
    """Send these jobs in one go."""
    task: Any = app.tasks[TASK]
    now = time.monotonic()
    starts.sent.update(dict.fromkeys(numbers, now))
    await app.enqueue([task.job(number) for number in numbers])


async def all_look(workers: Sequence[Executor]) -> None:
    """Every executor asks the queue once more."""
    await asyncio.gather(*(worker.consumer.look_again() for worker in workers))


async def test_while_eight_executors_sleep_nothing_starts_and_no_executor_is_woken(
    server: Server, without_looks: None, figure: Figure
) -> None:
    """L12. A resume wakes them all, and the jobs are drained at once."""
    starts, lane, number = Starts(), Lane(server), 1000
    async with starts.app_of(server.url) as app, executors(app, EIGHT, concurrency=32) as workers:
        names = {worker.name for worker in workers}
        await all_asleep(server, names)
        await app.queue("default").pause(only="consume", why="a test")
        assert lane.halted() == names
        messages = lane.messages()
        await send(starts, app, range(number))
        entries = lane.entries()
        await all_look(workers)
        assert (starts.times.total(), lane.messages() - messages, lane.released()) == (0, 0, 0)
        assert lane.halted() == names
        assert lane.entries() == entries
        assert len(entries) == number
        began = time.monotonic()
        await app.queue("default").resume()
        assert lane.halted() == set()
        await starts.all_started()
        took = time.monotonic() - began
    figure(
        "L12", f"8 asleep, {number} jobs: 0 starts, 0 messages, 0 put back; resumed: drained in {took:.2f} s"
    )


async def test_eight_executors_that_sleep_and_eight_that_work_start_nothing_although_messages_are_lost(
    server: Server, figure: Figure
) -> None:
    """L12. Those that are busy end their jobs and take no further one. All messages of the resume are lost."""
    starts, lane = Starts(), Lane(server)
    busy, waiting = range(EIGHT), range(EIGHT, 10 * EIGHT)
    async with starts.app_of(server.url) as app, executors(app, EIGHT, concurrency=1) as workers:
        await all_asleep(server, {worker.name for worker in workers})
        for n in busy:
            await starts.send(app, n, closed=True)
        for n in busy:
            await starts.started(n)
        async with executors(app, EIGHT, concurrency=1) as sleeping:
            await all_asleep(server, {worker.name for worker in sleeping})
            await app.queue("default").pause(only="consume")
            messages = lane.messages()
            await send(starts, app, waiting)
            for n in busy:
                starts.gates[n].set()
            await aeventually(lambda: lane.pending() == 0, within=30)
            names = {worker.name for worker in (*workers, *sleeping)}
            await aeventually(lambda: lane.halted() == names, within=2 * LOOK)
            assert starts.times == dict.fromkeys(busy, 1)
            assert (lane.messages() - messages, lane.released()) == (0, 0)
            began = time.monotonic()
            await resume_unheard(server, app)
            await starts.all_started()
            took = time.monotonic() - began
            delays = [await starts.started(n) - (began - starts.sent[n]) for n in waiting]
    figure(
        "L12", f"8 asleep, 8 busy, messages lost: drained {took:.2f} s after the resume; {summary(delays)}"
    )
    assert took < LOOK + scale.SLACK


async def resume_unheard(server: Server, app: App) -> None:
    """Resume the queue as a user who may use no channels, so that no executor receives a message."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "mute", "on", ">pw", "~*", "resetchannels", "+@all")
    mute = jobs.app_of(redis_url=server.url.replace("redis://", "redis://mute:pw@"))
    try:
        async with mute:
            assert await mute.queue("default").resume() is not None
    finally:
        with server.client() as client:
            client.execute_command("ACL", "DELUSER", "mute")
