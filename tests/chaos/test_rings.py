"""Messages that wake executors are lost, and executors end or stand still at the moment one reaches them.

No job depends on a message alone: every executor also looks at its queues, at least once in 5 seconds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from fennelq import App, Status
from fennelq.broker.keys import GROUP, queue_keys
from fennelq.worker.duties.promoter import Promoter
from fennelq.worker.processes.config import ExecutorConfig
from tests.chaos import client, clockwork, jobs, scale
from tests.chaos.conftest import Figure
from tests.chaos.crew import Crew
from tests.chaos.sleepers import LOOK, Starts, all_asleep, asleep, executors, next_to_wake, summary
from tests.kit.ledger import Ledger
from tests.kit.network import Exchange
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.waiting import aeventually, eventually

pytestmark = [
    pytest.mark.usefixtures("quiet"),
    pytest.mark.timeout(scale.of(300, long=600)),
    *scale.servers(),
]

KEYS: Final = queue_keys(jobs.NAME, "default")
CRASHED: Final = 137


class Dormitory:
    """Executors in processes of their own that sleep, and the jobs that are to wake them."""

    def __init__(self, crew: Crew, url: str) -> None:
        self.crew = crew
        self._beat: Any = clockwork.app_of(redis_url=url).tasks["clockwork:beat"]
        self.sent: list[str] = []

    def joins(self, **settings: str) -> tuple[Process, str]:
        """One more executor, and its name; it sleeps when this returns."""
        before = asleep(self.crew.server)
        process = self.crew.joins(settings=settings)
        (name,) = eventually(
            lambda: asleep(self.crew.server) - before, within=30, what="one more executor sleeps"
        )
        assert f".{process.pid}." in name
        return process, name

    def send(self) -> str:
        """Send a job; returns its id."""
        self.sent.append(self._beat.sync.delay(1).id)
        return self.sent[-1]

    def wakes(self, name: str) -> tuple[str, float]:
        """Send a job whose message goes to this executor: the job, and when it was sent."""
        with next_to_wake(self.crew.server, name):
            sent = time.monotonic()
            job = self.send()
        return job, sent

    def delay_of(self, job: str, sent: float) -> float:
        """The seconds until a job was started, when it has been."""
        return eventually(
            lambda: next(
                (
                    row.at - sent
                    for row in self.crew.ledger.read()
                    if (row.kind, row.job_id) == ("start", job)
                ),
                None,
            ),
            within=LOOK + 2 * scale.SLACK,
            what=f"{job} has started",
        )


@pytest.fixture
def dormitory(crew: Crew, server: Server) -> Dormitory:
    return Dormitory(crew, server.url)


def is_ring(exchange: Exchange) -> bool:
    return b"smessage" in exchange.reply and b"look " in exchange.reply


# The executor that is woken


def killed_when_rung(_: Proxy) -> dict[str, str]:
    return {"_FENNELQ_CRASH": "rung:1"}


def killed_before_it_asks(_: Proxy) -> dict[str, str]:
    return {"_FENNELQ_CRASH": "before:fetch:3"}


def behind_the_proxy(proxy: Proxy) -> dict[str, str]:
    return {"FENNELQ_REDIS_URL": proxy.url}


def as_it_is(_: Proxy) -> dict[str, str]:
    return {}


def nothing(_: Process, __: Proxy) -> None:
    pass


def stopped(victim: Process, _: Proxy) -> None:
    victim.stop()


def lost(_: Process, proxy: Proxy) -> None:
    proxy.drop_reply(1, is_ring)


def cut_in_front(_: Process, proxy: Proxy) -> None:
    proxy.drop_reply(1, is_ring, cut=True)


@pytest.mark.parametrize(
    ("settings", "fault", "dies"),
    [
        pytest.param(killed_when_rung, nothing, True, id="killed when rung"),
        pytest.param(killed_before_it_asks, nothing, True, id="killed before it asks"),
        pytest.param(as_it_is, stopped, False, id="stopped"),
        pytest.param(behind_the_proxy, lost, False, id="message lost"),
        pytest.param(behind_the_proxy, cut_in_front, False, id="link cut in front of the message"),
    ],
)
def test_a_job_whose_message_comes_to_nothing_starts_when_another_executor_looks(
    dormitory: Dormitory,
    proxy: Proxy,
    figure: Figure,
    settings: Callable[[Proxy], dict[str, str]],
    fault: Callable[[Process, Proxy], None],
    dies: bool,
) -> None:
    """T10. The job starts within a round of looks. The other executor serves what comes later; nothing runs twice."""
    crew = dormitory.crew
    dormitory.joins()
    victim, name = dormitory.joins(**settings(proxy))
    fault(victim, proxy)
    job, sent = dormitory.wakes(name)
    delay = dormitory.delay_of(job, sent)
    if settings is behind_the_proxy:
        assert proxy.counters.dropped >= 1, "no message was lost"
    else:
        assert name not in asleep(crew.server), "another executor was woken"
    if dies:
        assert victim.returncode(30) == CRASHED
        crew.members.remove(victim)
    later = [(dormitory.send(), time.monotonic()) for _ in range(5)]
    # A stopped executor may sleep at the queue all the same, and one of these may ring it.
    slowest = max(dormitory.delay_of(*one) for one in later)
    if not dies:
        victim.cont()
    crew.goes_home()
    figure(
        "T10", f"{fault.__name__}, {settings(proxy)}: started after {delay:.2f} s; later jobs {slowest:.2f} s"
    )
    assert delay <= LOOK + scale.SLACK
    assert slowest <= LOOK + scale.SLACK
    assert crew.ledger.starts() == crew.ledger.ends() == dict.fromkeys(dormitory.sent, 1)


@pytest.mark.parametrize("ghosts", [1, 99])
async def test_names_without_an_executor_are_skipped(
    server: Server, without_looks: None, figure: Figure, ghosts: int
) -> None:
    """T10. Executors were killed asleep, or forgotten in a failover: the same message goes to the next one."""
    starts = Starts()
    async with starts.app_of(server.url) as app, executors(app, 1) as (sleeper,):
        await all_asleep(server, {sleeper.name})
        for n in range(scale.of(10, long=100)):
            with server.client() as admin:
                admin.sadd(KEYS["idle"], *(f"ghost.{ghost}" for ghost in range(ghosts)))
            await starts.send(app, n)
            await starts.started(n)
            await all_asleep(server, {sleeper.name})
        delays = await starts.all_started()
    figure("T10", f"{ghosts} names without an executor: {summary(delays)}")


def test_sleepers_that_were_killed_are_skipped(dormitory: Dormitory, server: Server, figure: Figure) -> None:
    """T10. kill -9 of three executors that sleep: the fourth one is woken at once."""
    _, name = dormitory.joins()
    victims = [dormitory.joins()[0] for _ in range(3)]
    for victim in victims:
        dormitory.crew.dies(victim)
    sent = time.monotonic()
    delay = dormitory.delay_of(dormitory.send(), sent)
    eventually(lambda: asleep(server) == {name}, within=30, what="the names of the killed are forgotten")
    dormitory.crew.goes_home()
    figure("T10", f"three sleepers killed: started after {delay * 1000:.0f} ms")
    assert delay < scale.AT_ONCE


def test_more_names_without_an_executor_than_a_message_tries_cost_a_look(
    dormitory: Dormitory, server: Server, figure: Figure
) -> None:
    """T10. A message tries a hundred names, then it is given up: the executor looks by itself."""
    _, name = dormitory.joins()
    with server.client() as admin:
        admin.smove(KEYS["idle"], "aside", name)
        admin.sadd(KEYS["idle"], *(f"ghost.{ghost}" for ghost in range(101)))
        sent = time.monotonic()
        job = dormitory.send()
        assert len(asleep(server)) == 1
        admin.smove("aside", KEYS["idle"], name)
    delay = dormitory.delay_of(job, sent)
    dormitory.crew.goes_home()
    figure("T10", f"101 names without an executor: started after {delay:.2f} s")
    assert delay <= LOOK + scale.SLACK


# The one that rings


@pytest.mark.parametrize("point", ["sent:enqueue:1", "answered:enqueue:1"])
async def test_a_client_that_is_killed_after_an_enqueue_has_woken_an_executor(
    server: Server, spawn: Spawner, without_looks: None, point: str
) -> None:
    """T10. The message is part of the script that adds the job, so there is no moment between the two."""
    client.teach(server)
    async with jobs.app_of(redis_url=server.url) as app, executors(app, 2) as crew:
        await all_asleep(server, {one.name for one in crew})
        (job, *unsent) = client.ids("default")
        # What a process has sent in its last moment may be lost with its connection: then there is no job.
        while await app.result(job).status() is Status.UNKNOWN:
            environment = {"_FENNELQ_CRASH": point}
            sender = spawn(client.__name__, server.url, "default", "send", environment=environment)
            assert await asyncio.to_thread(sender.returncode, 30) == CRASHED
        await aeventually(lambda: is_done(app, job), within=30)
        assert await app.result(job).get() == jobs.receipt(job, 1)
        assert [await app.result(other).status() for other in unsent] == [Status.UNKNOWN] * len(unsent)


async def is_done(app: App, job: str) -> bool:
    return await app.result(job).status() is Status.SUCCESS


@pytest.mark.parametrize("point", ["sent:promote:1", "answered:promote:1"])
async def test_a_promoter_that_is_killed_after_it_has_moved_a_job_has_woken_an_executor(
    server: Server, spawn: Spawner, without_looks: None, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """T10. The executors that sleep do not promote here: only the message of the promoter that dies wakes them."""
    monkeypatch.setattr(Promoter, "tick", never)
    client.teach(server)
    starts = Starts()
    async with starts.app_of(server.url) as app, executors(app, 2) as crew:
        await all_asleep(server, {one.name for one in crew})
        await starts.send(app, 1, delay=0.001)
        environment = {"_FENNELQ_CRASH": point, "FENNELQ_REDIS_URL": server.url}
        promoter = spawn(clockwork.__name__, "promoter", "default", environment=environment)
        assert await asyncio.to_thread(promoter.returncode, 30) == CRASHED
        await starts.all_started()


async def never(_: Promoter) -> float:
    return 3600.0


@pytest.mark.parametrize("point", ["sent:finish:1", "answered:finish:1"])
async def test_an_executor_that_is_killed_after_a_failed_try_has_announced_the_next_one(
    server: Server, spawn: Spawner, ledger: Ledger, without_looks: None, figure: Figure, point: str
) -> None:
    """T10. Another executor, which sleeps, learns when the job is due by the script that has written the outcome."""
    client.teach(server)
    # With such a lease, a promoter looks by itself every 15 seconds.
    async with jobs.app_of(redis_url=server.url, lease=60) as app, executors(app, 2) as crew:
        await all_asleep(server, {one.name for one in crew})
        # One that reads only some lanes is woken when no other one sleeps. So it gets the first try and nothing else.
        victim = spawn_victim(spawn, server, ledger, point)
        await aeventually(lambda: "victim" in asleep(server, lane="s"), within=30)
        with next_to_wake(server):
            job = await jobs.task_of(app, jobs.flaky).delay(1)
        assert await asyncio.to_thread(victim.returncode, 30) == CRASHED
        began = time.monotonic()
        assert await job.get(timeout=30) == jobs.receipt(job.id, 1)
        took = time.monotonic() - began
    figure("T10", f"killed at {point}: the second try had ended {took * 1000:.0f} ms later")
    assert took < scale.AT_ONCE
    assert ledger.starts() == {job.id: 1}, "the first try was the victim's"


def spawn_victim(spawn: Spawner, server: Server, ledger: Ledger, point: str) -> Process:
    """An executor with one slot that reads the normal lane only."""
    config = ExecutorConfig(
        app=f"{jobs.__name__}:app", queues="default", lanes=("s",), concurrency=1, name="victim"
    )
    environment = {**ledger.environment, "FENNELQ_REDIS_URL": server.url, "_FENNELQ_CRASH": point}
    return spawn("fennelq.worker.processes.process", config.to_text(), environment=environment)


# Redis


def test_executors_that_sleep_survive_a_flushall(
    dormitory: Dormitory, server: Server, figure: Figure
) -> None:
    """T10. Redis forgets who sleeps, and everything else: jobs sent after that start within a round of looks."""
    number = 3
    names = {dormitory.joins()[1] for _ in range(number)}
    with server.client() as admin:
        admin.flushall()
    sent = time.monotonic()
    delay = dormitory.delay_of(dormitory.send(), sent)
    eventually(lambda: asleep(server) == names, within=LOOK + scale.SLACK, what="all sleep again")
    sent = time.monotonic()
    woken = dormitory.delay_of(dormitory.send(), sent)
    dormitory.crew.goes_home()
    figure("T10", f"FLUSHALL: started after {delay:.2f} s, the next after {woken * 1000:.0f} ms")
    assert delay <= LOOK + scale.SLACK
    assert woken < scale.AT_ONCE
    assert dormitory.crew.ledger.starts() == dict.fromkeys(dormitory.sent, 1)


# Networks


async def test_of_a_thousand_links_cut_none_delays_a_job_for_longer_than_a_look(
    server: Server, proxy: Proxy, figure: Figure
) -> None:
    """T10. Three executors' links are cut again and again while jobs ring: every job starts within a look, and none was
    delivered without being started."""
    links, dice, starts = scale.of(1_000, long=10_000), scale.dice("links"), Starts()
    near, far = starts.app_of(server.url), starts.app_of(proxy.url, lease=2)
    async with near, far, executors(far, 3, concurrency=4) as crew:
        await all_asleep(server, {one.name for one in crew})
        cut = await cut_links(proxy, links, dice, lambda: send_next(starts, near))
        delays = await starts.all_started()
    with server.client() as looking:
        pending: Any = looking.xpending(KEYS["s"], GROUP)
        stats: Any = looking.hgetall(KEYS["stats"])
    figure("T10", f"{cut} links cut: {summary(delays)}; handed back {int(stats.get(b'released', 0))}")
    assert max(delays) <= LOOK + scale.SLACK
    assert pending["pending"] == 0
    assert b"recovered" not in stats


async def cut_links(
    proxy: Proxy, links: int, dice: random.Random, send: Callable[[], Awaitable[None]]
) -> int:
    """Cut all links, some ten times a second and with a job on its way, until so many were cut; returns how many."""
    cut = 0
    while cut < links:
        cutting = asyncio.create_task(asyncio.to_thread(proxy.cut_all))
        await asyncio.sleep(dice.uniform(0, 0.003))
        await send()
        cut += await cutting
        await asyncio.sleep(dice.uniform(0, 0.15))
    return cut


async def send_next(starts: Starts, app: App) -> None:
    await starts.send(app, len(starts.sent))
