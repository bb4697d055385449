"""The meter: reports what an executor has counted, keeps what Redis has not confirmed, and disturbs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.typing import EventDict

from fennelq.broker import verbs
from fennelq.broker.broker import ANSWER_TIMEOUT, Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import queue_keys
from fennelq.broker.trouble import LinkDown, ReplyError
from fennelq.broker.verb import Verb
from fennelq.broker.verbs.runs import Settled
from fennelq.model.outcome import DEAD, Outcome, succeeded
from fennelq.worker.bus import JobHandedBack, JobLost, JobsTaken, RunsEnded
from fennelq.worker.duties import meter as module
from fennelq.worker.duties.meter import MINUTE, Meter
from fennelq.worker.state import State
from tests.broker.desk import Desk
from tests.kit.server import Server
from tests.worker.states import NOWHERE, state_of
from tests.worker.test_tally import NOW, delivery, sparse

DONE = succeeded(b"1", 1000)
TASK = "shop:welcome"


class Losing(Broker):
    """Loses as many replies of the script `meter` as it is told to, after the call has been made."""

    def __init__(self, url: str) -> None:
        super().__init__(address_of(url))
        self.lose = 0
        self.error: BaseException = LinkDown("the reply is lost")
        self.calls: list[tuple[str, int]] = []
        """Queue and fields of each call."""

    async def run(self, verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        self.calls.append((str(verb.args[0]).split("/")[1].split("}")[0], (len(verb.args) - 5) // 2))
        reply = await super().run(verb, within)
        if self.lose:
            self.lose -= 1
            raise self.error
        return reply


@pytest.fixture
async def losing(redis_url: str) -> AsyncIterator[Losing]:
    broker = Losing(redis_url)
    yield broker
    await broker.close()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of this process, which stands."""
    moment = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: moment[0])
    return moment


class Metering:
    """The meter of an executor whose jobs a test makes up."""

    def __init__(self, broker: Broker, now: list[float], **settings: Any) -> None:
        self.state: State = state_of(broker, queue_keys("shop", "mail"), **settings)
        self.state.app.task(name=TASK)(len)
        self.meter, self._now = Meter(self.state), now

    def run(self, number: int = 1, queue: str = "mail", task: str = TASK) -> None:
        """So many runs of 4 ms end."""
        self.state.bus.publish(RunsEnded(queue, [Settled(delivery(task), DONE, 0.004)] * number))

    async def minute(self) -> float:
        """A minute passes, and the meter ticks."""
        self._now[0] += MINUTE
        return await self.meter.tick()


@pytest.fixture
def metering(losing: Losing, now: list[float]) -> Metering:
    return Metering(losing, now)


def runs(desk: Desk) -> int:
    """The runs that Redis has counted."""
    now_ms = desk.broker.ask(verbs.server.now())
    found = [desk.do(verbs.times.times, now_ms - window) for window in (0, 600_000)]
    return sum(sum(counts) for one in found for (_, kind), counts in one.durations.items() if kind == "r")


async def test_nothing_is_written_per_job_and_one_report_per_minute_and_busy_queue(
    metering: Metering, losing: Losing, desk: Desk, other: Desk
) -> None:
    assert await metering.minute() == MINUTE
    assert losing.calls == []
    for _ in range(1000):
        metering.run()
    metering.run(7, "other")
    metering.state.bus.publish(JobsTaken("mail", [delivery(TASK, due_ms=NOW - 30)], NOW))
    assert losing.calls == []
    assert await metering.minute() == MINUTE
    assert sorted(losing.calls) == [("mail", 4), ("other", 3)]
    assert (runs(desk), runs(other)) == (1000, 7)
    counted = desk.do(verbs.times.times, desk.broker.ask(verbs.server.now()))
    assert {what: sparse(counts) for what, counts in counted.durations.items()} == {
        (TASK, "r"): {2: 1000},
        (TASK, "w"): {5: 1},
    }
    assert counted.ends == {TASK: {"S": 1000}}
    window = desk.broker.ask(verbs.server.now()) // 600_000
    kept = max(desk.redis.pttl(desk.keys.times(window)), desk.redis.pttl(desk.keys.times(window - 1)))
    assert 86_300_000 < kept <= 86_400_000
    await metering.minute()
    assert len(losing.calls) == 2


async def test_a_lost_reply_neither_loses_counts_nor_adds_them_twice(
    metering: Metering, losing: Losing, desk: Desk
) -> None:
    metering.run(5)
    losing.lose = 2
    for _ in range(2):
        with pytest.raises(LinkDown):
            await metering.minute()
        metering.run(1)
    await metering.minute()
    assert (runs(desk), losing.lose) == (7, 0)


async def test_a_report_that_is_cancelled_by_others_is_sent_again(
    metering: Metering, losing: Losing, desk: Desk, logged: list[EventDict]
) -> None:
    metering.run(5)
    losing.lose, losing.error = 1, asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await metering.minute()
    assert logged == []  # it is not an error of this queue
    await metering.minute()
    assert runs(desk) == 5


async def test_a_queue_with_a_damaged_key_is_named_and_stops_no_other(
    metering: Metering, desk: Desk, other: Desk, logged: list[EventDict]
) -> None:
    window = desk.broker.ask(verbs.server.now()) // 600_000
    for key in (desk.keys.times(window), desk.keys.times(window + 1)):
        desk.redis.set(key, "mine", px=60_000)
    for _ in range(3):
        metering.run(2)
        metering.run(1, "other")
        await metering.minute()
    assert (runs(other), [line["queue"] for line in logged]) == (3, ["mail"] * 3)
    assert "WRONGTYPE fq:{shop/mail}:m:" in logged[0]["error"]
    desk.redis.delete(desk.keys.times(window), desk.keys.times(window + 1))
    await metering.minute()
    assert runs(desk) == 6


async def test_over_maxmemory_the_counts_are_kept_and_sent_later(
    metering: Metering, server: Server, desk: Desk
) -> None:
    metering.run(5)
    with server.configured(maxmemory="1"):
        for _ in range(3):
            with pytest.raises(ReplyError, match="OOM"):
                await metering.minute()
            metering.run(1)
    await metering.minute()
    assert runs(desk) == 8


async def test_without_redis_the_counts_grow_to_a_bound_and_what_is_lost_is_logged(
    now: list[float], monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    monkeypatch.setattr(module, "MOST_UNSENT", 9)
    metering = Metering(Broker(address_of(NOWHERE)), now)
    for minute in range(4):
        for queue in range(3):
            metering.run(10, f"q{queue}")
        metering.run(1, f"new{minute}")
        with pytest.raises(ConnectionRefusedError):
            await metering.minute()
    lost = [line["durations"] for line in logged if line["event"] == "times_not_counted"]
    # The reports of the first minute are apart. The counts after it have room for three queues.
    assert lost == [1, 1, 1, 1]
    await metering.meter.end()
    (line,) = [line for line in logged if line["event"] == "times_lost"]
    assert line["durations"] + sum(lost) == 4 * 31


async def test_an_error_is_retried_soon_without_counting_a_new_minute(
    metering: Metering, losing: Losing, desk: Desk
) -> None:
    metering.run(5)
    losing.lose = 1
    with pytest.raises(LinkDown):
        await metering.minute()
    metering.run(1)
    await metering.meter.tick()
    assert (runs(desk), losing.calls) == (5, [("mail", 3)] * 2)


async def test_a_report_of_very_many_tasks_is_sent_in_pages_one_after_the_other(
    metering: Metering, losing: Losing, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FIELDS", 10)
    for n in range(25):
        name = f"shop:task_{n}"
        metering.state.app.task(name=name)(len)
        metering.run(1, task=name)
    losing.lose = 1
    with pytest.raises(LinkDown):
        await metering.minute()
    metering.run(2)
    await metering.minute()
    # Each task has a run time and an outcome, and all tasks together have one outcome of the minute.
    assert losing.calls == [("mail", size) for size in (10, 10, 10, 10, 10, 10, 1, 3)]
    assert runs(desk) == 27


async def test_many_queues_with_many_tasks_are_reported_in_pages(
    metering: Metering, losing: Losing, desk: Desk, other: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FIELDS", 1)
    monkeypatch.setattr(module, "MOST_AT_ONCE", 1)
    metering.state.app.task(name="shop:resize")(len)
    for queue in ("mail", "other"):
        for task in (TASK, "shop:resize"):
            metering.run(1, queue, task)
    await metering.minute()
    assert sorted(losing.calls) == [("mail", 1)] * 5 + [("other", 1)] * 5
    assert (runs(desk), runs(other)) == (2, 2)


async def test_with_metrics_ttl_0_nothing_is_written_and_the_facts_are_there(
    losing: Losing, now: list[float], desk: Desk
) -> None:
    metering = Metering(losing, now, metrics_ttl=0)
    metering.run(5)
    await metering.minute()
    await metering.meter.end()
    assert (losing.calls, desk.everything()) == ([], {})
    assert metering.state.tally.facts() == {"run_times": {"count": 5, "p50": 0.0037, "p95": 0.0049}}


async def test_a_server_that_hangs_delays_the_end_for_a_moment_only(
    metering: Metering, losing: Losing, monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    async def no_reply(verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        """The limit of a call is longer, and there may be several calls."""
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "LAST_REPORT", 0.05)
    monkeypatch.setattr(module, "MOST_FIELDS", 1)
    monkeypatch.setattr(losing, "run", no_reply)
    metering.run(4)
    metering.run(1, task="shop:unknown")
    await asyncio.wait_for(metering.meter.end(), 20)
    assert [(line["event"], line.get("durations")) for line in logged] == [
        ("trouble", None),
        ("times_lost", 5),
    ]


async def test_the_end_reports_the_rest_also_of_a_report_that_was_cancelled(
    metering: Metering, losing: Losing, desk: Desk, logged: list[EventDict]
) -> None:
    metering.run(5)
    ticking = asyncio.create_task(metering.minute())
    await asyncio.sleep(0)
    assert losing.calls == []
    await asyncio.sleep(0)
    assert losing.calls == [("mail", 3)]
    ticking.cancel()
    metering.run(2)
    await metering.meter.end()
    assert (runs(desk), logged) == (7, [])


async def test_runs_are_counted_in_the_minute_in_which_they_ended(
    metering: Metering, losing: Losing, desk: Desk, now: list[float]
) -> None:
    """Also when Redis takes the report only minutes later."""
    now_ms = desk.broker.ask(verbs.server.now())
    minute = now_ms // 60_000 * 60_000
    metering.state.bus.publish(JobsTaken("mail", [delivery(TASK)], minute - 9 * 60_000))
    metering.run(5)
    metering.state.bus.publish(RunsEnded("mail", [Settled(delivery(TASK), Outcome(DEAD), 0.1)] * 2))
    losing.lose = 1
    with pytest.raises(LinkDown):
        await metering.minute()  # half of it has passed since the fetch
    now[0] += 5 * MINUTE
    metering.run(1)
    await metering.minute()
    hours = {at // 3_600_000 for at in (minute - 9 * 60_000, minute)}
    found = {
        minute_at(hour, place): ends
        for hour in hours
        for place, ends in desk.do(verbs.times.hour, hour * 3_600_000).items()
    }
    assert found == {minute // 60_000 - 9: {"S": 5, "D": 2}, minute // 60_000 - 3: {"S": 1}}
    counted = desk.do(verbs.times.times, now_ms)
    assert counted.ends == {TASK: {"S": 6, "D": 2}}


async def test_the_report_of_an_executor_that_ends_is_of_the_time_since_the_last_one(
    metering: Metering, desk: Desk, now: list[float]
) -> None:
    minute = desk.broker.ask(verbs.server.now()) // 60_000 * 60_000
    metering.state.bus.publish(JobsTaken("mail", [delivery(TASK)], minute + 10_000))
    await metering.meter.tick()
    now[0] += 10
    metering.run(1)
    await metering.meter.end()
    hour = minute // 3_600_000
    found = desk.do(verbs.times.hour, hour * 3_600_000)
    assert {minute_at(hour, place): ends for place, ends in found.items()} == {minute // 60_000: {"S": 1}}


async def test_runs_without_an_outcome_are_counted(metering: Metering) -> None:
    metering.state.bus.publish(JobLost(delivery(TASK)))
    metering.state.bus.publish(JobHandedBack(delivery(TASK)))
    counted = metering.state.tally.take()["mail"][TASK]
    assert (counted.ended("L"), counted.ended("B"), counted.ended("S")) == (1, 1, 0)


def minute_at(hour: int, place: int) -> int:
    return hour * 60 + place
