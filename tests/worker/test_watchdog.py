"""The watchdog: an executor of which a vital thread has died is given up, and so is one whose loop is stalled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.typing import EventDict

from fennelq import App
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.connection import address_of
from fennelq.worker.executor import Executor, GivenUp
from fennelq.worker.processes import signs
from fennelq.worker.threads.heartbeat import Findings, Heartbeat
from fennelq.worker.threads.watchdog import Watchdog
from tests.kit.ledger import Ledger
from tests.kit.waiting import aeventually, eventually
from tests.worker import frail, shop
from tests.worker.conftest import Workers, executors
from tests.worker.shop import Gate, task_of

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def deadly(_: object) -> None:
    raise SystemExit


def heartbeat_on(redis_url: str, report: Callable[[Findings], None]) -> Heartbeat:
    return Heartbeat(
        broker=BlockingBroker(address_of(redis_url)),
        executor="me",
        lease=15.0,
        interval=0.01,
        queues=list,
        held=list,
        report=report,
    )


def test_a_heartbeat_whose_thread_ends_by_itself_is_dead(redis_url: str) -> None:
    heartbeat = heartbeat_on(redis_url, deadly)
    assert not heartbeat.dead
    heartbeat.start()
    eventually(lambda: heartbeat.dead)


def test_a_heartbeat_that_is_ended_is_not_dead(redis_url: str) -> None:
    beaten = threading.Event()
    heartbeat = heartbeat_on(redis_url, lambda _: beaten.set())
    heartbeat.start()
    beaten.wait()
    heartbeat.end()
    heartbeat._thread.join()
    assert not heartbeat.dead


def test_a_heartbeat_counts_as_dead_while_its_last_words_are_held_up(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, shown = threading.Event(), threading.Event()

    def hold_up(_: object) -> None:
        shown.set()
        release.wait()

    def fail(_: object) -> None:
        raise GeneratorExit

    monkeypatch.setattr(threading, "excepthook", hold_up)
    heartbeat = heartbeat_on(redis_url, fail)
    heartbeat.start()
    shown.wait()
    assert heartbeat._thread.is_alive()
    assert heartbeat.dead
    release.set()
    heartbeat._thread.join()


class Watched:
    """A watchdog on the running loop, and what it reports."""

    def __init__(self, **how: Any) -> None:
        self.stalled = 0
        self.alive = 0
        how.setdefault("alive", self._alive)
        self.dog = Watchdog(stall_timeout=60.0, running=lambda _: None, stalled=self._stalled, **how)

    def _alive(self) -> None:
        self.alive += 1

    def _stalled(self, sign: bytes) -> None:
        assert sign == signs.HEARTLESS
        self.stalled += 1


async def test_an_executor_without_heartbeat_is_given_up(logged: list[EventDict]) -> None:
    watched = Watched(heartless=lambda: True)
    watched.dog.start()
    await aeventually(lambda: watched.stalled)
    watched.dog._thread.join()
    assert (watched.stalled, watched.alive) == (1, 0)
    died, stacks = logged
    assert (died["event"], stacks["event"]) == ("heartbeat_died", "stacks")
    assert "most recent call first" in stacks["stack"]


async def test_a_watchdog_that_dies_gives_up_its_executor() -> None:
    def die() -> None:
        raise SystemExit

    watched = Watched(alive=die)
    watched.dog.start()
    await aeventually(lambda: watched.stalled)
    watched.dog._thread.join()
    assert watched.stalled == 1


async def test_an_executor_is_given_up_even_if_that_cannot_be_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(heartless=lambda: True)
    watched.dog.start()
    watched.dog.end()
    watched.dog._thread.join()
    monkeypatch.setattr(watched.dog, "_where", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        watched.dog.look()
    assert watched.stalled == 1


@pytest.mark.audit(unfinished=True)
async def test_an_executor_whose_heartbeat_died_asks_for_a_successor_and_falls_over_by_itself(
    app: App, gate: Gate
) -> None:
    """Handed back in order, a job that stalls its executor each time would start again for ever."""
    told: list[bytes] = []
    executor = Executor(app, concurrency=1, tell=told.append)
    executor.heartbeat._report = deadly
    result = await task_of(app, shop.hold).delay(str(gate))
    # Nothing tells it to stop.
    with pytest.raises(GivenUp):
        await asyncio.wait_for(executor.run(), 15)
    assert signs.HEARTLESS in told
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
    assert await (await double.delay(1)).get(timeout=15) == 2
    (first,) = executors(worker)
    (tmp_path / "word").write_text(thread)
    (tmp_path / "word").rename(ask)
    assert "the thread that renews its leases" in worker.wait_for("executor_killed", within=15)
    # Only then: what arrives while the server has not noticed the death goes to the dead one, and waits for its lease.
    second = await aeventually(
        lambda: next((one for one in executors(worker) if one != first), None), within=15
    )
    assert await (await double.delay(2)).get(timeout=15) == 4
    assert {row.pid for row in ledger.read()} == {first.pid, second.pid}
    worker.term()
    assert worker.returncode() == 0
