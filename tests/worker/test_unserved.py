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


async def test_of_the_executors_of_a_machine_the_first_reports(
    app: App, watch: Watch, logged: list[EventDict]
) -> None:
    await send(app, "reports")
    for _ in range(5):
        await watch.after(30, {"reports"}, adam={})
    assert warnings(logged) == []


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
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        monkeypatch.setattr("fennelq.worker.duties.unserved.random.random", lambda: 0.5)
        self.state = state_of(broker)
        self._unserved = UnservedQueues(self.state)
        monkeypatch.setattr(self._unserved, "look", self._look)

    async def _look(self, *_: object) -> None:
        self.looks.append(self.now - 1000)

    async def among(self, colleagues: int, *, until: int) -> list[float]:
        """The seconds at which it has looked until this second."""
        self.state.note_colleagues(colleagues)
        while self.now < 1000 + until:
            await self._unserved.tick(set())
            self.now += 5
        return self.looks


async def test_a_single_executor_looks_at_its_start_and_every_15_seconds(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await Looking(broker, monkeypatch).among(1, until=45) == [0, 15, 30]


async def test_the_first_look_in_a_large_fleet_comes_after_a_random_part_of_the_pause(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = Looking(broker, monkeypatch)
    assert await looking.among(101, until=650) == [200, 605]


async def test_the_pause_follows_a_fleet_that_shrinks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = Looking(broker, monkeypatch)
    assert await looking.among(1001, until=2005) == [2000]
    assert await looking.among(2, until=2025) == [2000, 2015]
