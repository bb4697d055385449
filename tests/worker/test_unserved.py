"""Queues that no worker serves: a warning once a minute, when jobs wait in them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from structlog.typing import EventDict

from fennelq import App, clock
from fennelq.broker.broker import Broker
from fennelq.executors import Executors
from fennelq.worker.duties.unserved import UnservedQueues
from tests.worker.states import state_of

NOW = 2_000_000_000_000


def executors(**given: dict[str, Any]) -> Executors:
    heard = {"beat_ms": NOW, "interval": 1, "host": "box", "queues": ["mail"]}
    return Executors({name: orjson.dumps(heard | facts) for name, facts in given.items()}, NOW)


class Watch:
    """An executor named `anna` that looks at queues whenever the test asks it to, on a clock that is moved by hand."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        self._unserved = UnservedQueues(state_of(broker))

    async def after(self, seconds: float, known: set[str], **others: dict[str, Any]) -> None:
        self.now += seconds
        await self._unserved.look(known, executors(anna={}, **others), NOW)


@pytest.fixture
def watch(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(broker, monkeypatch)


async def send(app: App, queue: str, number: int = 1, **options: Any) -> None:
    await app.enqueue([app.describe("shop:any", queue=queue, **options) for _ in range(number)])


def warnings(logged: list[EventDict]) -> list[str]:
    return [line["waiting"] for line in logged if line["event"] == "queues_unserved"]


async def test_jobs_that_wait_in_a_queue_without_a_worker_are_counted_once_a_minute(
    app: App, watch: Watch, logged: list[EventDict]
) -> None:
    await send(app, "reports", 3)
    await send(app, "images", priority="low")
    await send(app, "mail")
    known = {"reports", "mail", "empty", "images"}
    for _ in range(0, 150, 5):
        await watch.after(5, known)
    assert warnings(logged) == ["images: 1, reports: 3"] * 3
    (line, *_) = [line for line in logged if line["event"] == "queues_unserved"]
    assert line["log_level"] == "warning"
    assert line["how"] == (
        "start a worker with -q images,reports, or one without -q, which serves every queue"
    )


async def test_a_queue_whose_worker_restarts_is_not_reported(
    app: App, watch: Watch, logged: list[EventDict]
) -> None:
    await send(app, "reports")
    await watch.after(0, {"reports"})
    await watch.after(9, {"reports"})
    await watch.after(2, {"reports"}, berta={"queues": ["reports"]})
    await watch.after(0, {"reports"})
    await watch.after(9, {"reports"})
    assert warnings(logged) == []
    await watch.after(1, {"reports"})
    assert warnings(logged) == ["reports: 1"]


@pytest.mark.parametrize("served", [{"queues": ["reports"]}, {"every_queue": True}])
async def test_a_queue_that_another_worker_serves_is_not_reported(
    app: App, watch: Watch, logged: list[EventDict], served: dict[str, Any]
) -> None:
    await send(app, "reports")
    for _ in range(5):
        await watch.after(30, {"reports"}, berta=served)
    assert warnings(logged) == []


async def test_jobs_that_are_scheduled_count_when_they_are_due(
    app: App, watch: Watch, logged: list[EventDict]
) -> None:
    await send(app, "soon", delay=60)
    await send(app, "late", delay=60 * 60 * 24 * 365 * 9)
    for _ in range(3):
        await watch.after(10, {"soon", "late"})
    assert warnings(logged) == ["soon: 1"]


async def test_at_most_ten_queues_are_looked_at(app: App, watch: Watch, logged: list[EventDict]) -> None:
    known = {f"q{number:02}" for number in range(12)}
    for queue in known:
        await send(app, queue)
    for _ in range(3):
        await watch.after(10, known)
    assert warnings(logged) == [", ".join(f"q{number:02}: 1" for number in range(10))]


@pytest.mark.audit(skip="a key is damaged on purpose")
async def test_a_damaged_queue_does_not_hide_another_one(
    app: App, watch: Watch, broker: Broker, logged: list[EventDict]
) -> None:
    from fennelq.broker.keys import queue_keys
    from fennelq.broker.verb import Command

    await send(app, "reports")
    await broker.ask(Command(["SET", queue_keys("shop", "broken")["s"], "x"], bytes))
    for _ in range(3):
        await watch.after(10, {"reports", "broken"})
    assert warnings(logged) == ["reports: 1"]


class Looking:
    """The looks of an executor, whose presence ticks every 5 seconds of a clock that is moved by hand."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.looks = 1000.0, list[float]()
        self.read: list[str] = []
        """The first words of the commands that it has sent."""
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        self._broker, self._ask = broker, broker.ask
        monkeypatch.setattr(broker, "ask", self._noted)
        self._unserved = UnservedQueues(state_of(broker))
        monkeypatch.setattr(self._unserved, "look", self._look)

    async def _noted(self, command: Any, *args: Any) -> Any:
        self.read.append(command.words[0])
        return await self._ask(command, *args)

    async def _look(self, *_: object) -> None:
        self.looks.append(self.now - 1000)

    async def ticks(self, seconds: int, *, watches: bool) -> list[float]:
        """Tick for so many seconds; returns when it has looked since the start."""
        end = self.now + seconds
        while self.now < end:
            await self._unserved.tick(set(), watches=watches)
            self.now += 5
        return self.looks


@pytest.fixture
def looking(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Looking:
    return Looking(broker, monkeypatch)


async def test_the_watcher_looks_at_its_start_and_every_15_seconds(looking: Looking) -> None:
    assert await looking.ticks(45, watches=True) == [0, 15, 30]
    assert "HGETALL" in looking.read


async def test_an_executor_that_does_not_watch_reads_nothing(looking: Looking) -> None:
    assert await looking.ticks(600, watches=False) == []
    assert looking.read == []


async def test_an_executor_that_becomes_the_watcher_looks_at_once(looking: Looking) -> None:
    await looking.ticks(20, watches=False)
    assert await looking.ticks(20, watches=True) == [20, 35]


async def test_a_new_watcher_waits_as_long_as_a_restart_may_take_before_it_warns(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    """What it saw when it watched before does not count: others have watched in between."""
    now = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    await send(app, "reports")
    unserved, known = UnservedQueues(state_of(broker)), {"reports"}
    await unserved.tick(known, watches=True)
    now[0] += 300
    await unserved.tick(known, watches=False)
    await unserved.tick(known, watches=True)
    assert warnings(logged) == []
    now[0] += 15
    await unserved.tick(known, watches=True)
    assert warnings(logged) == ["reports: 1"]
