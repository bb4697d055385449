"""Networks that cut, delay, and swallow messages."""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import pytest
import redis
from structlog.testing import capture_logs

from fennelq.broker import verbs
from fennelq.broker.broker import Broker
from fennelq.broker.keys import GROUP, LANES, queue_keys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Command, as_is
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from tests.chaos import client, jobs, scale
from tests.chaos.account import account, drained, left
from tests.chaos.conftest import Figure
from tests.chaos.fleet import LEASE, Fleet
from tests.chaos.load import Feeder, call, name_of, send, some
from tests.kit.ledger import Ledger
from tests.kit.network import Exchange
from tests.kit.ports import HOST, Port
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.spawn import Spawner
from tests.kit.waiting import aeventually, eventually

pytestmark = [pytest.mark.timeout(scale.of(300, long=600)), *scale.servers()]

KEYS: Final = queue_keys(jobs.NAME, "default")


def answers_of(name: str) -> Callable[[Exchange], bool]:
    """Replies to the script of that name."""
    sha = script(name).sha.encode()
    return lambda exchange: len(exchange.words) > 1 and exchange.words[1] == sha


def has_jobs(exchange: Exchange) -> bool:
    """Whether the reply to a fetch has jobs: its first part is the list of them."""
    return exchange.reply.split(b"\r\n", 2)[1] != b"*0"


def every_second(meant: Callable[[Exchange], bool]) -> Callable[[Exchange], bool]:
    seen = 0

    def chosen(exchange: Exchange) -> bool:
        nonlocal seen
        seen += meant(exchange)
        return meant(exchange) and seen % 2 == 0

    return chosen


def ready(port: int) -> bool:
    return _probe(port, "ready")


def live(port: int) -> bool:
    return _probe(port, "live")


def _probe(port: int, what: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/{what}", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


# Connections that are cut


def test_connections_are_cut_again_and_again(
    fleet: Fleet, proxy: Proxy, ledger: Ledger, server: Server, figure: Figure
) -> None:
    cuts, every = scale.of(8, long=120), 0.5
    fleet.start(url=proxy.url)
    feeder = Feeder(proxy.url, 10**6, per_second=200, seed=scale.SEED).start()
    cut = 0
    for _ in range(cuts):
        time.sleep(every)  # that is how often the network breaks
        cut += proxy.cut_all()
    last = time.monotonic()
    eventually(lambda: left(server) < 100, within=5 + scale.SLACK, what="it has caught up")
    caught_up = time.monotonic() - last
    feeder.enough()
    sent = feeder.finish()
    drained(server, within=30)
    fleet.stop()
    it = account(server, sent, ledger, budget=cuts * 32)
    figure("N2", f"{cut} connections cut in {cuts} cuts: {it}; caught up {caught_up:.2f} s after the last")
    it.sound()
    assert it.done == len(sent)


# Replies that are lost


@pytest.mark.parametrize("keyed", [False, True], ids=["without a key", "with a key"])
async def test_a_call_whose_reply_was_lost_makes_one_job(
    proxy: Proxy, server: Server, figure: Figure, keyed: bool
) -> None:
    number = scale.of(100, long=400)
    proxy.drop_replies(every_second(answers_of("enqueue")), cut=True)
    async with jobs.app_of(redis_url=proxy.url) as app:
        work = jobs.task_of(app, jobs.work)
        tasks = [work.options(key=f"k{i}") if keyed else work for i in range(2 * number)]
        handles = [await task.delay(1) for task in tasks[:number]]
        handles += await asyncio.gather(*(task.delay(1) for task in tasks[number:]))
    assert not any(handle.deduplicated for handle in handles)
    with server.client() as looking:
        found = cast("Any", looking.xrange(KEYS["s"]))
    entries = [fields[b"i"].decode() for _, fields in found]
    lost = proxy.counters.dropped
    with_or_without = "with" if keyed else "without"
    figure("N3", f"{2 * number} calls {with_or_without} a key, {lost} replies lost: {len(entries)} jobs")
    assert sorted(f"default:{key}" for key in entries) == sorted(handle.id for handle in handles)
    assert lost >= number // 2


@pytest.mark.parametrize("cut", [False, True], ids=["in silence", "with its connection"])
def test_jobs_whose_delivery_was_lost_on_the_way_come_back(
    fleet: Fleet, proxy: Proxy, ledger: Ledger, server: Server, figure: Figure, cut: bool
) -> None:
    """The executor stays alive and does not know of them."""
    fleet.start(url=proxy.url)
    fleet.start("--priority", "high")  # another worker, which could take them from it, and nothing else
    meant = answers_of("fetch")
    proxy.drop_reply(1, lambda exchange: meant(exchange) and has_jobs(exchange), cut=cut)
    began = time.monotonic()
    sent = send(server.url, some(32, jobs.work, 5))
    drained(server, within=2 * LEASE + scale.SLACK)
    took = max(row.at for row in ledger.read() if row.kind == "start") - began
    assert proxy.counters.dropped >= 1
    proxy.up()
    fleet.stop()
    it = account(server, sent, ledger)
    it.sound()
    how = "with its connection" if cut else "in silence"
    figure(
        "N4",
        f"reply to a fetch lost {how}: all 32 had started {took:.2f} s later, {it.released} handed back at no cost, "
        f"{it.recovered} recovered, started again {it.started_again}",
    )
    assert it.started_again == 0
    assert took < 1.5 * LEASE + scale.SLACK


def test_outcomes_are_written_down_once_when_every_second_answer_is_lost(
    fleet: Fleet, proxy: Proxy, ledger: Ledger, server: Server, figure: Figure
) -> None:
    number = scale.of(1_000, long=2_000)
    fleet.start(url=proxy.url, concurrency=4)
    proxy.drop_replies(every_second(answers_of("finish")), cut=True)
    # They end one by one, so that there are many answers to lose.
    sent = send(server.url, lambda app: [call(app, jobs.work, 3 * (i % 11)) for i in range(number)])
    drained(server, within=60)
    lost = proxy.counters.dropped
    proxy.up()
    fleet.stop()
    it = account(server, sent, ledger)
    figure("N5", f"{number} outcomes, {lost} answers lost: {it}")
    it.sound()
    assert it.done == number
    assert it.started_again == 0
    assert lost > 10


async def test_reads_that_are_cancelled_lose_nothing_and_mix_nothing_up(
    server: Server, figure: Figure
) -> None:
    """fennelq cancels no read; should anything do so, the job is stranded and not lost."""
    cancels, dice, wrong = scale.of(150, long=300), scale.dice("cancels"), 0
    sent: dict[str, str] = {}
    async with jobs.app_of(redis_url=server.url, lease=LEASE) as app:
        broker, lanes = Broker(app.address), [*LANES.values()]
        read = verbs.runs.fetch(KEYS, consumer="anna", free=1, lanes=lanes, lifetimes=app.lifetimes)
        for number in range(cancels):
            job = call(app, jobs.work, 1)
            sent[job.id] = name_of(job)
            sending = asyncio.create_task(app.enqueue([job]))
            await asyncio.sleep(dice.uniform(0, 0.001))
            reading = asyncio.create_task(broker.run(read))
            asking = asyncio.create_task(broker.ask(Command(["ECHO", f"cancelled {number}"], as_is)))
            await asyncio.sleep(dice.uniform(0, 0.001))
            reading.cancel()
            asking.cancel()
            wrong += await broker.ask(Command(["ECHO", f"{number}"], as_is)) != str(number).encode()
            await sending
        await broker.close()
        with server.client() as looking:
            stranded = looking.xpending(KEYS["s"], GROUP)["pending"]
        began = time.monotonic()
        executor = Executor(app, ExecutorConfig(name="anna", concurrency=32))
        with capture_logs():
            life = asyncio.create_task(executor.run())
            await aeventually(lambda: left(server) == 0, within=2 * LEASE + scale.SLACK)
            took = time.monotonic() - began
            executor.stop()
            await life
    it = account(server, sent)
    figure(
        "N6", f"{cancels} cancels: {stranded} stranded, all done {took:.2f} s later; wrong replies {wrong}"
    )
    it.sound()
    assert it.done == cancels
    assert stranded > 0
    assert wrong == 0


# Silence


def test_a_black_hole_is_noticed(
    fleet: Fleet, proxy: Proxy, ledger: Ledger, server: Server, figure: Figure
) -> None:
    with _a_port() as port:
        worker = fleet.start("--health-port", f"{HOST}:{port}", url=proxy.url)
        eventually(lambda: ready(port), within=30)
        sent = send(server.url, some(8, jobs.work, LEASE * 1000 / 4))
        eventually(lambda: len(ledger.starts()) == 8, within=30)
        proxy.blackhole()
        began = time.monotonic()
        eventually(lambda: not ready(port), within=5 + 1 + scale.SLACK)
        noticed = time.monotonic() - began
        eventually(lambda: len(ledger.ends()) == 8, within=30, what="what runs goes on")
        assert live(port)
        assert worker.process.running
        proxy.up()
        began = time.monotonic()
        eventually(lambda: ready(port), within=5 + scale.SLACK)
        back = time.monotonic() - began
        drained(server, within=30)
        fleet.stop()
    it = account(server, sent, ledger, budget=8)
    figure(
        "N7",
        f"not ready {noticed:.2f} s after the network went silent, ready {back:.2f} s after its return; {it}",
    )
    it.sound()


@contextmanager
def _a_port() -> Generator[int]:
    port = Port()
    try:
        yield port.number
    finally:
        port.release()


def test_on_a_slow_network_jobs_are_not_taken_away(
    fleet: Fleet, proxy: Proxy, ledger: Ledger, server: Server, figure: Figure
) -> None:
    proxy.latency(100)
    fleet.start(url=proxy.url)
    fleet.start(url=proxy.url)
    sent = send(server.url, some(100, jobs.work, 2 * LEASE * 1000 / 2))
    drained(server, within=60)
    fleet.stop()
    it = account(server, sent, ledger)
    figure("N8", f"200 ms for every round trip: {it}")
    it.sound()
    assert (it.done, it.recovered, it.started_again) == (100, 0, 0)


@pytest.mark.parametrize("seconds", [1.5, 3 * LEASE])
def test_jobs_are_not_taken_away_when_the_server_pauses(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure, seconds: float
) -> None:
    fleet.start(processes=2)
    fleet.start(processes=2)
    sent = send(server.url, some(64, jobs.work, 2 * LEASE * 1000))
    eventually(lambda: len(ledger.starts()) == 64, within=30)
    time.sleep(LEASE)  # by now all of them judge others
    with server.client(timeout=30) as admin:
        admin.client_pause(round(seconds * 1000))
    drained(server, within=40 + seconds)
    fleet.stop()
    it = account(server, sent, ledger, budget=64)
    figure(
        "N8",
        f"server paused {seconds:g} s, 64 in flight: recovered {it.recovered}, run again {it.started_again}",
    )
    it.sound()
    assert it.done == 64
    assert it.started_again == 0


def test_too_many_clients_are_waited_out(
    fleet: Fleet, ledger: Ledger, server: Server, figure: Figure
) -> None:
    fleet.start(processes=2)
    feeder = Feeder(server.url, 10**6, per_second=100, seed=scale.SEED).start()
    eventually(lambda: len(ledger.ends()) > 20, within=30)
    with server.client() as admin, room_for_clients(admin, 4):
        admin.client_kill_filter(_type="normal", skipme=True)
        admin.client_kill_filter(_type="pubsub", skipme=True)
        rejected = admin.info("stats")["rejected_connections"]
        eventually(lambda: admin.info("stats")["rejected_connections"] > rejected, within=30)
        time.sleep(scale.of(3, long=10))  # so long there are too many
        refused = admin.info("stats")["rejected_connections"] - rejected
    since, done = time.monotonic(), len(ledger.ends())
    eventually(lambda: len(ledger.ends()) > done + 50, within=5 + scale.SLACK)
    back = time.monotonic() - since
    feeder.enough()
    sent = feeder.finish()
    drained(server, within=30)
    fleet.stop()
    it = account(server, sent, ledger, budget=64)
    figure("N9", f"{refused} connections refused: {it}; 50 more done {back:.2f} s later")
    it.sound()
    assert refused > 0


@contextmanager
def room_for_clients(admin: redis.Redis, number: int) -> Generator[None]:
    """Only so many may be connected meanwhile. Those who are stay."""
    before = str(admin.config_get("maxclients")["maxclients"])
    admin.config_set("maxclients", number)
    try:
        yield
    finally:
        admin.config_set("maxclients", before)


# Clocks


def skewed(seconds: float) -> Mapping[str, str]:
    """The environment of a machine whose clock is that far ahead."""
    return {"PYTHONPATH": str(Path(__file__).parent / "skew"), "TEST_CLOCK_SKEW": str(seconds)}


def test_clocks_that_are_hours_apart_have_no_effect(
    fleet: Fleet, ledger: Ledger, server: Server, spawn: Spawner, figure: Figure
) -> None:
    ahead, behind = skewed(7200), skewed(-7200)
    fleet.start(settings=ahead)
    fleet.start(settings=behind)
    sent: dict[str, str] = {}
    for environment, name in ((ahead, "ahead"), (behind, "behind")):
        sender = spawn(client.__name__, server.url, name, "send", environment=environment)
        assert sender.returncode(30) == 0
        sent |= dict.fromkeys(client.ids(name), "work")
    delay = 1.5
    due = round((time.monotonic() + delay) * 1000)
    sent |= send(server.url, some(50, jobs.due, due, delay=delay))
    sent |= send(server.url, some(32, jobs.work, 2 * LEASE * 1000))
    for queue in ("default", "ahead", "behind"):
        drained(server, within=30, queue=queue)
    fleet.stop()
    late = [int(row.note) for row in ledger.read() if row.kind == "start" and row.note]
    it = account(server, sent, ledger, queues=("default", "ahead", "behind"))
    figure("N10", f"clocks 4 hours apart: due jobs {min(late)} to {max(late)} ms late; {it}")
    it.sound()
    assert (it.done, it.recovered, it.started_again) == (len(sent), 0, 0)
    assert min(late) >= -50
    assert max(late) <= 1000 + 1000 * scale.SLACK


def test_a_machine_whose_clock_is_wrong_forgets_no_executor(fleet: Fleet, server: Server) -> None:
    """Facts about executors are dated by the server: a worker hours ahead takes no other for dead."""
    fleet.start()
    fleet.start(settings=skewed(7200))

    def both_known() -> bool:
        with server.client() as looking:
            return int(cast("Any", looking.hlen(f"fq:{{{jobs.NAME}}}:executors"))) == 2

    assert both_known()
    deadline = time.monotonic() + LEASE
    while time.monotonic() < deadline:
        assert both_known()
        time.sleep(0.05)
    fleet.stop()
