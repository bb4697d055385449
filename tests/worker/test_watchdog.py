"""The watchdog: an executor of which a vital thread has died is given up, and so is one whose loop is stalled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.typing import EventDict

from fennelq import App
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.worker.bus import ExecutorGivenUp
from fennelq.worker.executor import Executor, GivenUp
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.processes.signals import Signal, SignalPipe
from fennelq.worker.state import State
from fennelq.worker.threads.heartbeat import BeatResult, Heartbeat
from fennelq.worker.threads.watchdog import Watchdog
from tests.kit.apps import LocalApp
from tests.kit.ledger import Ledger
from tests.kit.processes import executors
from tests.kit.waiting import aeventually, eventually
from tests.worker import frail, shop
from tests.worker.conftest import Workers
from tests.worker.shop import Gate, task_of
from tests.worker.states import published, state_of

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def deadly() -> BeatResult:
    raise SystemExit


class Doing(Heartbeat):
    """Does what a test wants instead of beating."""

    def __init__(self, redis_url: str, beat: Callable[[], BeatResult]) -> None:
        address = address_of(redis_url)
        state = state_of(Broker(address), heartbeat_interval=0.01)
        super().__init__(state, BlockingBroker(address))
        self.lease, self._do = state.lease, beat

    def beat(self) -> BeatResult:
        return self._do()


def thread_of(start: Callable[[], None]) -> threading.Thread:
    """The thread that this call starts."""
    before = set(threading.enumerate())
    start()
    (thread,) = set(threading.enumerate()) - before
    return thread


def test_a_heartbeat_whose_thread_ends_by_itself_is_dead(redis_url: str) -> None:
    heartbeat = Doing(redis_url, deadly)
    assert not heartbeat.lease.dead
    heartbeat.start()
    eventually(lambda: heartbeat.lease.dead)


def test_a_heartbeat_that_is_ended_is_not_dead(redis_url: str) -> None:
    beaten = threading.Event()

    def beat() -> BeatResult:
        beaten.set()
        return BeatResult([], [], 0)

    heartbeat = Doing(redis_url, beat)
    thread = thread_of(heartbeat.start)
    beaten.wait()
    heartbeat.end()
    thread.join()
    assert not heartbeat.lease.dead


def test_a_heartbeat_counts_as_dead_while_its_last_words_are_held_up(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, shown = threading.Event(), threading.Event()

    def hold_up(_: object) -> None:
        shown.set()
        release.wait()

    def fail() -> BeatResult:
        raise GeneratorExit

    monkeypatch.setattr(threading, "excepthook", hold_up)
    heartbeat = Doing(redis_url, fail)
    thread = thread_of(heartbeat.start)
    shown.wait()
    assert thread.is_alive()
    assert heartbeat.lease.dead
    release.set()
    thread.join()


class Received(SignalPipe):
    """Keeps what is sent; fails to send some of it."""

    def __init__(self, *refused: Signal) -> None:
        super().__init__()
        self.signals: list[Signal] = []
        self._refused = refused

    def send(self, *signals: Signal) -> None:
        if set(signals) & set(self._refused):
            raise SystemExit
        self.signals += signals


class Watched:
    """A watchdog on the running loop, and what it sends."""

    def __init__(self, redis_url: str, *refused: Signal) -> None:
        self.pipe = Received(*refused)
        app = LocalApp("shop", redis_url=redis_url, stall_timeout=60.0)
        self.state = State(app, ExecutorConfig(), self.pipe)
        self.given_up = published(self.state, ExecutorGivenUp)
        self.state.bus.attach(asyncio.get_running_loop())
        self.dog = Watchdog(self.state)


async def test_an_executor_without_heartbeat_is_given_up(redis_url: str, logged: list[EventDict]) -> None:
    watched = Watched(redis_url)
    watched.state.lease.thread_ended()
    thread = thread_of(watched.dog.start)
    await aeventually(lambda: watched.given_up)
    thread.join()
    assert watched.pipe.signals == [Signal.HEARTLESS]
    assert watched.state.lease.ended.is_set()
    died, stacks = logged
    assert (died["event"], stacks["event"]) == ("heartbeat_died", "stacks")
    assert "most recent call first" in stacks["stack"]


async def test_a_watchdog_that_dies_gives_up_its_executor(redis_url: str) -> None:
    watched = Watched(redis_url, Signal.ALIVE)
    thread = thread_of(watched.dog.start)
    await aeventually(lambda: watched.given_up)
    thread.join()
    assert watched.pipe.signals == [Signal.HEARTLESS]


async def test_an_executor_is_given_up_even_if_that_cannot_be_logged(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(redis_url)
    thread = thread_of(watched.dog.start)
    watched.dog.end()
    thread.join()
    watched.pipe.signals.clear()
    watched.state.lease.thread_ended()

    def broken(_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(watched.state.held, "job_of", broken)
    with pytest.raises(ZeroDivisionError):
        watched.dog.look()
    assert watched.pipe.signals == [Signal.HEARTLESS]


@pytest.mark.audit(unfinished=True)
async def test_an_executor_whose_heartbeat_died_asks_for_a_successor_and_falls_over_by_itself(
    app: App, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handed back in order, a job that stalls its executor each time would start again for ever."""
    pipe = Received()
    executor = Executor(app, ExecutorConfig(concurrency=1), pipe)
    monkeypatch.setattr(executor.heartbeat, "beat", deadly)
    result = await task_of(app, shop.hold).delay(str(gate))
    # Nothing asks it to stop.
    with pytest.raises(GivenUp):
        await asyncio.wait_for(executor.run(), 30)
    assert Signal.HEARTLESS in pipe.signals
    info = await result.info()
    assert info is not None
    assert (info.status.name, info.owner) == ("EXECUTING", executor.name)
    gate.open()


@pytest.mark.parametrize("thread", ["heartbeat", "watchdog"])
async def test_an_executor_of_which_a_vital_thread_dies_is_replaced(
    workers: Workers, app: App, ledger: Ledger, tmp_path: Path, thread: str
) -> None:
    ask = tmp_path / "ask"
    worker = workers(app=f"{frail.__name__}:app", **{frail.VARIABLE: str(ask)})
    double = task_of(app, shop.double)
    assert await (await double.delay(1)).get(timeout=30) == 2
    (first,) = executors(worker)
    (tmp_path / "word").write_text(thread)
    (tmp_path / "word").rename(ask)
    assert "the thread that renews its leases" in worker.wait_for("executor_killed")
    # Only then: what arrives while the server has not noticed the death goes to the dead one, and waits for its lease.
    second = await aeventually(
        lambda: next((one for one in executors(worker) if one != first), None), within=15
    )
    assert await (await double.delay(2)).get(timeout=30) == 4
    assert {row.pid for row in ledger.read()} == {first.pid, second.pid}
    worker.term()
    assert worker.returncode() == 0


# Facts


async def stopped(redis_url: str) -> Watched:
    """A watchdog that has been started, and whose thread has ended."""
    watched = Watched(redis_url)
    thread = thread_of(watched.dog.start)
    watched.dog.end()
    await asyncio.to_thread(thread.join)
    return watched


@pytest.mark.parametrize(
    ("lag", "fact", "stands_in"), [(0.4, False, False), (0.6, True, False), (1.1, True, True)]
)
async def test_what_blocks_the_loop_for_half_a_second_is_a_fact_and_after_a_second_the_deputy_stands_in(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, lag: float, fact: bool, stands_in: bool
) -> None:
    watched = await stopped(redis_url)
    monkeypatch.setattr(watched.dog, "lag", lambda: lag)
    assert watched.dog.look()
    vitals = watched.state.vitals
    assert (bool(vitals.blockage()), vitals.blocked, vitals.wakes.is_set()) == (fact, stands_in, stands_in)
    monkeypatch.setattr(watched.dog, "lag", lambda: 0.1)
    assert watched.dog.look()
    assert not vitals.blocked


async def test_a_fact_that_cannot_be_read_costs_no_executor(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = await stopped(redis_url)

    def broken(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(watched.state.held, "of_task", broken)
    monkeypatch.setattr(watched.dog, "lag", lambda: 0.6)
    watched.pipe.signals.clear()
    assert watched.dog.look()
    assert Signal.ALIVE in watched.pipe.signals


async def test_the_lag_is_how_much_later_than_planned_the_loop_has_come_to_a_tick(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: now[0])
    watched = Watched(redis_url)
    watched.dog.start()
    assert watched.state.vitals.take_lag() == 0.0
    now[0] += 0.75
    await aeventually(lambda: watched.state.vitals.take_lag() == 0.5)
    watched.dog.end()
