"""The speculator: which runs of an executor get a second copy, and how many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.typing import EventDict

from fennelq.broker.broker import ANSWER_TIMEOUT, Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import queue_keys
from fennelq.broker.trouble import LinkDown
from fennelq.broker.verb import Verb
from fennelq.broker.verbs.runs import Settled
from fennelq.model.job import Delivery
from fennelq.model.outcome import succeeded
from fennelq.worker.bus import RunsEnded
from fennelq.worker.duties.meter import Meter
from fennelq.worker.duties.speculator import INTERVAL, MOST_CREDIT, Speculator
from fennelq.worker.running.held import Held
from fennelq.worker.state import State
from fennelq.worker.tally import MOST_KEPT, Tally
from tests.broker.desk import Desk, a_job, some_jobs
from tests.worker.states import state_of
from tests.worker.test_tally import delivery

pytestmark = pytest.mark.audit(unfinished=True)

TASK = "app:welcome"


class Counting(Broker):
    """Counts the calls. Refuses as many as it is told to, and loses as many replies, after the call has been made."""

    def __init__(self, url: str) -> None:
        super().__init__(address_of(url))
        self.calls: list[str] = []
        self.lose = self.refuse = 0

    async def run(self, verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        self.calls.append(verb.script.name)
        if self.refuse:
            self.refuse -= 1
            raise LinkDown("no connection")
        reply = await super().run(verb, within)
        if self.lose:
            self.lose -= 1
            raise LinkDown("the reply is lost")
        return reply


class Speculating:
    """Anna's speculator, beside a colleague. A test decides which runs she has, and how long they take."""

    def __init__(self, broker: Broker, now: list[float], speculate: float | None = 0.95) -> None:
        self.state: State = state_of(broker, queue_keys("shop", "mail"))
        self.state.app.task(name=TASK, idempotent=True, speculate=speculate)(len)
        self.state.app.task(name="app:other")(len)
        self.state.note_colleagues(2)
        self.meter, self.speculator, self._now = Meter(self.state), Speculator(self.state), now
        self._endless = asyncio.Event()

    def ended(self, number: int = 100, seconds: float = 0.09, task: str = TASK) -> None:
        """So many runs of a task end."""
        self.state.bus.publish(RunsEnded("mail", [Settled(delivery(task), DONE, seconds)] * number))

    def held(self, *deliveries: Delivery) -> list[Held]:
        """Anna runs these."""
        all_held = [Held(one) for one in deliveries]
        for one in all_held:
            one.task = asyncio.create_task(self._run())
            self.state.held.by_token[one.delivery.token] = one
        return all_held

    async def _run(self) -> None:
        await self._endless.wait()

    async def after(self, *seconds: float) -> None:
        """Tick, and again after each of these times."""
        assert await self.speculator.tick() == INTERVAL
        for pause in seconds:
            self._now[0] += pause
            assert await self.speculator.tick() == INTERVAL

    async def end(self) -> None:
        self._endless.set()
        await asyncio.gather(*self.state.held.tasks())


DONE = succeeded(b"1", 1000)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of this process, which stands."""
    moment = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: moment[0])
    return moment


@pytest.fixture
async def counting(redis_url: str) -> AsyncIterator[Counting]:
    broker = Counting(redis_url)
    yield broker
    await broker.close()


@pytest.fixture
async def anna(counting: Counting, now: list[float]) -> AsyncIterator[Speculating]:
    speculating = Speculating(counting, now)
    yield speculating
    await speculating.end()


async def test_a_run_that_takes_longer_than_95_of_100_runs_gets_a_second_copy(
    anna: Speculating, counting: Counting, desk: Desk, logged: list[EventDict]
) -> None:
    anna.ended(95, 0.09)
    anna.ended(5, 0.9)
    (run,) = anna.held(*desk.executing())
    await anna.after(0.05)
    assert counting.calls == []
    await anna.after(0.06, 1.0)
    assert counting.calls == ["double"]
    assert desk.waiting() == ["1", "1"]
    assert desk.record()["p"] == f"{run.delivery.lane}/{run.delivery.entry}"
    (line,) = logged
    assert line == {
        "event": "job_doubled",
        "log_level": "info",
        "job_id": "mail:1",
        "task": TASK,
        "queue": "mail",
        "tries": 1,
        "seconds": 0.11,
        "usual": 0.1,
    }


async def test_a_copy_that_came_back_is_asked_for_again_less_and_less_often(
    anna: Speculating, counting: Counting, desk: Desk
) -> None:
    anna.ended(1000)
    anna.held(*desk.executing())
    await anna.after(1.0, 4.9)
    assert counting.calls == ["double"]
    assert desk.take("anna") == []
    await anna.after(0.2)
    assert desk.stats() == {"doubled": 2, "dropped": 1}
    await anna.after(9.9)
    assert counting.calls == ["double"] * 2
    await anna.after(0.2)
    assert counting.calls == ["double"] * 3
    assert desk.stats() == {"doubled": 2, "dropped": 1}


async def test_it_does_not_know_what_is_usual_before_100_runs_have_ended(
    anna: Speculating, counting: Counting, desk: Desk
) -> None:
    anna.held(*desk.executing())
    anna.ended(99)
    await anna.after(100.0)
    assert counting.calls == []
    anna.ended(1)
    await anna.after()
    assert counting.calls == ["double"]


async def test_the_runs_of_other_tasks_do_not_count(
    anna: Speculating, counting: Counting, desk: Desk
) -> None:
    anna.held(*desk.executing())
    anna.ended(1000, task="app:other")
    await anna.after(100.0)
    assert counting.calls == []


async def test_what_the_meter_has_reported_still_counts(
    anna: Speculating, counting: Counting, desk: Desk
) -> None:
    anna.ended(60)
    anna.state.tally.take()
    anna.ended(60)
    anna.held(*desk.executing())
    await anna.after(1.0)
    assert counting.calls == ["double"]


async def test_an_executor_without_a_colleague_asks_for_nothing(
    anna: Speculating, counting: Counting, desk: Desk
) -> None:
    anna.ended()
    anna.held(*desk.executing())
    anna.state.note_colleagues(1)
    await anna.after(100.0)
    assert counting.calls == []


async def test_tasks_that_do_not_speculate_are_left_alone(
    anna: Speculating, counting: Counting, desk: Desk
) -> None:
    anna.ended(1000, task="app:other")
    anna.ended()
    anna.held(*desk.executing(a_job(task="app:other")))
    await anna.after(100.0)
    assert counting.calls == []


async def test_without_a_task_that_speculates_it_sleeps_and_keeps_nothing(
    counting: Counting, now: list[float]
) -> None:
    idle = Speculating(counting, now, speculate=None)
    assert await idle.speculator.tick() == 3600.0
    idle.ended(1000)
    with pytest.raises(KeyError):
        idle.state.tally.runs_of(TASK)


async def test_runs_that_end_or_were_asked_to_stop_or_are_in_quarantine_are_not_doubled(
    anna: Speculating, counting: Counting, desk: Desk
) -> None:
    anna.ended()
    ends, asked, alone = anna.held(*desk.executing(*some_jobs(3)))
    await anna.after()
    del anna.state.held.by_token[ends.delivery.token]
    asked.asked = "enough"
    alone.delivery = alone.delivery._replace(lane="iso")
    await anna.after(100.0)
    assert counting.calls == []


async def test_when_all_runs_take_longer_than_usual_only_one_for_twenty_that_have_ended_is_doubled(
    anna: Speculating, desk: Desk
) -> None:
    anna.ended(120)
    anna.held(*desk.executing(*some_jobs(30)))
    await anna.after(1.0, 1.0, 100.0)
    assert desk.stats()["doubled"] == 6
    # The oldest ones.
    assert desk.waiting()[30:] == [str(key) for key in range(1, 7)]
    anna.ended(40, 1000.0)
    await anna.after(1.0)
    assert desk.stats()["doubled"] == 6, "1000 seconds are usual now"


async def test_at_most_ten_copies_are_made_at_once_however_many_runs_have_ended(
    anna: Speculating, desk: Desk
) -> None:
    anna.ended(5000)
    anna.held(*desk.executing(*some_jobs(30)))
    await anna.after(1.0, 100.0)
    assert desk.stats()["doubled"] == MOST_CREDIT


async def test_a_wish_that_got_no_reply_is_repeated_and_makes_no_third_copy(
    anna: Speculating, counting: Counting, desk: Desk
) -> None:
    anna.ended()
    anna.held(*desk.executing())
    await anna.after()
    counting.lose = 1
    with pytest.raises(LinkDown):
        await anna.after(1.0)
    await anna.after(1.0, 1.0)
    assert counting.calls == ["double", "double"]
    assert desk.waiting() == ["1", "1"]


async def test_a_queue_with_a_damaged_key_does_not_stop_the_others(
    anna: Speculating, counting: Counting, desk: Desk, other: Desk, logged: list[EventDict]
) -> None:
    anna.ended()
    anna.held(*desk.executing())
    other.enqueue(a_job())
    anna.held(*(run._replace(queue="other") for run in other.take()))
    desk.redis.hset(desk.keys["paused"], "a", "hash")
    await anna.after(1.0)
    assert counting.calls == ["double", "double"]
    assert other.stats() == {"doubled": 1}
    (line,) = [line for line in logged if line["event"] == "trouble"]
    assert line["queue"] == "mail"
    desk.redis.delete(desk.keys["paused"])
    await anna.after(1.0)
    assert desk.stats() == {"doubled": 1}


async def test_an_outage_takes_no_credit_of_the_runs_that_were_not_asked_for(
    anna: Speculating, counting: Counting, desk: Desk, other: Desk
) -> None:
    anna.ended(140)
    anna.held(*desk.executing(*some_jobs(3)))
    other.enqueue(*some_jobs(4))
    anna.held(*(run._replace(queue="other") for run in other.take()))
    await anna.after()
    for _ in range(5):
        counting.refuse = 1
        with pytest.raises(LinkDown):
            await anna.after(1.0)
    await anna.after(1.0)
    assert desk.stats() == {"doubled": 3}
    assert other.stats() == {"doubled": 4}


def test_the_latest_runs_decide_and_take_bounded_memory() -> None:
    tally = Tally([TASK])
    tally.keep([TASK])
    for seconds in (0.09, 9.0):
        for _ in range(20):
            tally.ended(RunsEnded("mail", [Settled(delivery(TASK), DONE, seconds)] * MOST_KEPT))
            tally.take()
    runs = tally.runs_of(TASK)
    assert runs.number == 40 * MOST_KEPT
    assert runs.recent.count <= MOST_KEPT
    assert runs.recent.percentile(5) == pytest.approx(5.0, abs=5.0)
