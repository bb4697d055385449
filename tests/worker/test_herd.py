"""A due job concerns one executor. In a fleet, a few others promote at the same moment, and not all of them."""

from __future__ import annotations

import heapq
import math
import random
from itertools import count

import pytest

from fennelq.broker import verbs
from fennelq.broker.broker import Broker
from fennelq.broker.keys import QueueKeys
from fennelq.worker.bus import JobDue
from fennelq.worker.duties.promoter import Promoter
from fennelq.worker.state import State
from tests.kit.clock import ServerClock
from tests.kit.jobs import sent
from tests.worker.states import state_of

pytestmark = pytest.mark.audit(unfinished=True)

EXECUTORS = 40
START = 2_000_000_000_000
FETCH_EVERY = 5.0


class Fleet:
    """The promoters of a fleet on one clock, which is also that of the server and jumps from event to event.

    Every executor also fetches every five seconds, and so learns when the next job is due.
    """

    def __init__(self, broker: Broker, mail: QueueKeys, server_clock: ServerClock, now: list[float]) -> None:
        self.now, self.calls_for_due_jobs = now, 0
        self._broker, self._mail, self._clock = broker, mail, server_clock
        self._numbers, self._events = count(), list[tuple[float, int, int, str]]()
        self._next_tick = [0.0] * EXECUTORS
        self.states = [self._state() for _ in range(EXECUTORS)]
        self.promoters = [Promoter(state) for state in self.states]
        for number in range(EXECUTORS):
            self._plan_tick(random.uniform(0, 60), number)
            self._plan(random.uniform(0, FETCH_EVERY), number, "fetch")

    def _state(self) -> State:
        state = state_of(self._broker, self._mail, lease=60.0, heartbeat_interval=15.0)
        state.note_colleagues(EXECUTORS)
        state.note_listening(True)
        return state

    def _plan(self, seconds: float, executor: int, what: str) -> None:
        heapq.heappush(self._events, (self.now[0] + seconds, next(self._numbers), executor, what))

    def _plan_tick(self, seconds: float, executor: int) -> None:
        """The next tick is then, and at no other time."""
        self._next_tick[executor] = self.now[0] + seconds
        self._plan(seconds, executor, "tick")

    async def send(self, number: int, seconds: float) -> None:
        """Send a job that is due in so many seconds. One executor is told."""
        job = sent("mail", str(number), task="shop:note", args=b"[[],{}]", delay_ms=round(seconds * 1000))
        await self._broker.run(verbs.jobs.enqueue(self._mail, [job]))
        self.learn(random.randrange(EXECUTORS), JobDue(seconds, "mail", announced=True))

    def learn(self, executor: int, due: JobDue) -> None:
        """An executor learns this."""
        self.states[executor].bus.publish(due)
        moment = self.promoters[executor].due.get("mail", math.inf)
        if moment < self._next_tick[executor]:
            self._plan_tick(moment - self.now[0], executor)

    async def passes(self, seconds: float) -> None:
        """So much time passes."""
        end = self.now[0] + seconds
        while self._events[0][0] <= end:
            moment, _, executor, what = heapq.heappop(self._events)
            if what == "tick" and moment != self._next_tick[executor]:
                continue
            self.now[0] = moment
            self._clock.stop_at(START + round(moment * 1000))
            await (self._fetch(executor) if what == "fetch" else self._tick(executor))
        self.now[0] = end
        self._clock.stop_at(START + round(end * 1000))

    async def _fetch(self, executor: int) -> None:
        catch = await self._broker.run(
            verbs.runs.fetch(
                self._mail,
                consumer=f"executor-{executor}",
                free=100,
                lanes=["s"],
                lifetimes=self.states[executor].lifetimes,
            )
        )
        if catch.drained:
            self.states[executor].note_looked("mail")
        if catch.due_ms >= 0:
            self.learn(executor, JobDue(catch.due_ms / 1000, "mail"))
        self._plan(random.uniform(0.75, 1.0) * FETCH_EVERY, executor, "fetch")

    async def _tick(self, executor: int) -> None:
        promoter = self.promoters[executor]
        self.calls_for_due_jobs += promoter.due.get("mail", math.inf) <= self.now[0]
        self._plan_tick(await promoter.tick(), executor)


@pytest.fixture
def fleet(
    broker: Broker, mail: QueueKeys, server_clock: ServerClock, monkeypatch: pytest.MonkeyPatch
) -> Fleet:
    now = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: now[0])
    server_clock.stop_at(START + 1_000_000)
    return Fleet(broker, mail, server_clock, now)


async def promoted_in_time(broker: Broker, keys: QueueKeys) -> bool:
    return await broker.ask(verbs.queues.length(keys, "sched")) == 0


async def test_of_forty_executors_about_ten_promote_for_a_due_job(
    fleet: Fleet, broker: Broker, mail: QueueKeys
) -> None:
    jobs = 30
    for number in range(jobs):
        await fleet.send(number, random.uniform(2, 15))
        await fleet.passes(15.1)
        assert await promoted_in_time(broker, mail)
    assert jobs <= fleet.calls_for_due_jobs <= 15 * jobs


@pytest.mark.parametrize(
    ("seconds", "ahead"), [(0.1, 3.0), (0.5, 3.0), (0.5, 30.0), (1.0, 10.0), (3.0, 30.0)]
)
async def test_a_stream_of_due_jobs_does_not_make_the_whole_fleet_promote_for_each(
    fleet: Fleet, broker: Broker, mail: QueueKeys, seconds: float, ahead: float
) -> None:
    """An executor that promotes learns when the next job is due. It would promote for that one as well, and so on."""
    number = 0
    while number < 60:
        await fleet.send(number, ahead)
        await fleet.passes(seconds)
        number += 1
    await fleet.passes(ahead + 0.1)
    assert await promoted_in_time(broker, mail)
    assert number <= fleet.calls_for_due_jobs <= 15 * number


async def test_a_job_is_promoted_in_time_although_the_executor_that_was_told_has_ended(
    fleet: Fleet, broker: Broker, mail: QueueKeys
) -> None:
    await fleet.send(1, 15.0)
    for promoter in fleet.promoters:
        promoter.due.clear()
    await fleet.passes(15.1)
    assert await promoted_in_time(broker, mail)


@pytest.mark.parametrize(("seconds", "known"), [(0.9, True), (1.2, False)])
async def test_what_a_fetch_finds_beyond_the_horizon_is_ignored(
    fleet: Fleet, seconds: float, known: bool
) -> None:
    """Within a second, about nine of forty executors look."""
    fleet.learn(0, JobDue(seconds, "mail"))
    assert ("mail" in fleet.promoters[0].due) == known


@pytest.mark.parametrize("seconds", [0.9, 1.2, 86_400.0])
async def test_what_was_announced_to_this_executor_is_never_ignored(fleet: Fleet, seconds: float) -> None:
    fleet.learn(0, JobDue(seconds, "mail", announced=True))
    assert fleet.promoters[0].due == {"mail": fleet.now[0] + seconds}
