"""The ticker, tick by tick, on a server whose clock stands still until a test moves it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from structlog.typing import EventDict

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.broker import Broker
from fennelq.broker.keys import LANES, AppKeys, QueueKeys
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verbs.runs import Settled
from fennelq.broker.verbs.schedules import Look, Seen
from fennelq.model.job import JobFailure, JobInfo, Status
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.outcome import Outcome, died, retried, succeeded
from fennelq.model.schedule import WireSchedule
from fennelq.model.wire import AnyWireJob
from fennelq.worker.bus import HandOverWaits, SchedulesChanged
from fennelq.worker.duties.courier import Courier
from fennelq.worker.duties.ticker import Ticker, decide
from fennelq.worker.state import State
from tests.kit.apps import LocalApp
from tests.kit.clock import ServerClock
from tests.kit.server import Server
from tests.worker.states import NOWHERE, state_of

NOW = 1_795_000_020_000
"""A whole minute."""
MINUTE = 60_000
LONGEST = 4.0
UNFINISHED = 0.25
KEYS = AppKeys("shop")
SERVICE = "shop.tasks:shop"
LIFETIMES = Lifetimes(600_000, 600_000)
FAILURE = JobFailure("ValueError", "no such user")


def a_schedule(name: str = "report", **given: Any) -> WireSchedule:
    """Every minute."""
    fields: dict[str, Any] = {"task": "shop:report", "queue": "mail", "args": b"[[],{}]", "every_ms": MINUTE}
    return WireSchedule(name=name, **fields | given)


class Declaring(LocalApp):
    """An app of this service, whose code declares these schedules."""

    def __init__(self, service: str, schedules: Sequence[WireSchedule], **settings: Any) -> None:
        super().__init__("shop", **settings)
        self.service = service
        self.declared.schedules = {schedule.name: schedule for schedule in schedules}


class Fleet:
    """Executors, as far as they tick."""

    def __init__(self, broker: Broker, server: Server, time: ServerClock, mail: QueueKeys) -> None:
        self.broker, self.time, self.mail = broker, time, mail
        self.redis = server.client()
        self.woken = 0
        self.latest: State
        """The state of the executor that has joined last."""

    def joins(self, *schedules: WireSchedule, service: str = SERVICE, lease: float = 16) -> Ticker:
        """A new executor, whose code declares these."""
        app = Declaring(service, schedules, redis_url=NOWHERE, lease=lease, schedule_interval=LONGEST)
        state = state_of(self.broker, app=app)
        state.note_listening(True)
        state.bus.subscribe(HandOverWaits, self.note_woken)
        self.latest = state
        return Ticker(state)

    def note_woken(self, _: HandOverWaits) -> None:
        self.woken += 1

    async def started(self, *schedules: WireSchedule, service: str = SERVICE) -> Ticker:
        """One that has declared its schedules and looked."""
        ticker = self.joins(*schedules, service=service)
        await self.settled(ticker)
        return ticker

    async def settled(self, *tickers: Ticker) -> list[float]:
        """Tick until nothing is left to do now; answers when they would look again."""
        return [await self._settled(ticker) for ticker in tickers]

    async def _settled(self, ticker: Ticker) -> float:
        for _ in range(50):
            if pause := await ticker.tick():
                return pause
        raise AssertionError("it comes again at once, again and again")

    async def minutes(self, number: float, *tickers: Ticker) -> None:
        """So many pass, and these tick every half a minute."""
        for _ in range(round(number * 2)):
            self.time.pass_by(MINUTE // 2)
            await self.settled(*tickers)

    async def silence(self, minutes: float, *newcomers: Ticker) -> None:
        """So many pass in which no executor is there; then these come."""
        self.time.pass_by(round(minutes * MINUTE))
        await self.settled(*newcomers)

    def runs(self, name: str = "report") -> list[int]:
        """The minutes whose jobs have been made, from NOW on."""
        prefix = f"mail:cron.{name}."
        out = cast("dict[bytes, bytes]", self.redis.hgetall(KEYS["out"]))
        made = [job.decode().removeprefix(prefix) for job in out if job.decode().startswith(prefix)]
        return sorted((int(due) - NOW) // MINUTE for due in made)

    async def state(self, name: str = "report") -> dict[str, str]:
        fields = await self.broker.ask(verbs.schedules.state(KEYS, name))
        return {field: value.decode() for field, value in fields.items() if field != "definition"}

    async def queued(self, name: str = "report") -> list[int]:
        waiting = (await self.broker.ask(verbs.schedules.queued(KEYS, [name])))[name]
        return [(due - NOW) // MINUTE for due in waiting]

    # The life of the last job

    async def arrive(self) -> list[AnyWireJob]:
        """What is on its way arrives in its queue."""
        page = await self.broker.ask(verbs.outbox.handing(KEYS, "0"))
        if page.jobs:
            await self.broker.run(verbs.jobs.enqueue(self.mail, page.jobs))
            await self.broker.ask(verbs.outbox.handed(KEYS, [job.id for job in page.jobs]))
        return page.jobs

    async def begin(self) -> list[Any]:
        await self.arrive()
        verb = verbs.runs.fetch(
            self.mail, consumer="anna", free=100, lanes=tuple(LANES.values()), lifetimes=LIFETIMES
        )
        return (await self.broker.run(verb)).deliveries

    async def end(self, outcome: Outcome | None = None) -> None:
        settled = [Settled(delivery, outcome or succeeded(b"1", 60_000)) for delivery in await self.begin()]
        await self.broker.run(verbs.runs.finish(self.mail, settled, LIFETIMES))


@pytest.fixture
def fleet(broker: Broker, server: Server, server_clock: ServerClock, mail: QueueKeys) -> Fleet:
    server_clock.stop_at(NOW)
    return Fleet(broker, server, server_clock, mail)


def complaints(logged: list[EventDict]) -> list[str]:
    """What is logged about schedules that cannot be claimed."""
    stuck = [line for line in logged if line["event"] == "schedules_stuck"]
    return [f"{', '.join(line['schedules'])}: {line['error']}" for line in stuck]


# Looking


async def test_with_nothing_scheduled_it_sleeps_as_long_as_it_may(fleet: Fleet) -> None:
    ticker = fleet.joins()
    assert await fleet.settled(ticker) == [LONGEST]
    assert await ticker.tick() == LONGEST


async def test_it_looks_every_five_seconds_however_long_the_lease(fleet: Fleet) -> None:
    ticker = fleet.joins(lease=600)
    assert await fleet.settled(ticker) == [5.0]


async def test_it_sleeps_until_the_next_is_due(fleet: Fleet) -> None:
    ticker = fleet.joins(a_schedule(every_ms=1500), a_schedule("daily", every_ms=86_400_000))
    assert await fleet.settled(ticker) == [1.5 - NOW % 1500 / 1000]


async def test_it_declares_the_schedules_of_the_code_and_then_looks_again(fleet: Fleet) -> None:
    ticker = fleet.joins(a_schedule())
    assert await ticker.tick() == 0.0
    assert await fleet.state() == {"source": f"code:{SERVICE}", "next": str(NOW + MINUTE)}
    assert await ticker.tick() == LONGEST


async def test_entries_that_no_courier_carries_wake_none(fleet: Fleet) -> None:
    """A ticker and a courier of one executor: the courier is woken until it has seen that nothing is left to carry."""
    ticker = fleet.joins()
    courier = Courier(fleet.latest)
    await fleet.settled(ticker)
    fleet.redis.hset(KEYS["out"], "part/1", "for another part")
    assert await fleet.settled(ticker) == [UNFINISHED]
    assert fleet.woken == 1
    await courier.tick()
    for _ in range(3):
        fleet.time.pass_by(1000)
        assert await fleet.settled(ticker) == [LONGEST]
    assert fleet.woken == 1
    job = verbs.schedules.job_of(a_schedule(), NOW)
    fleet.redis.hset(KEYS["out"], job.id, job.to_wire())
    fleet.time.pass_by(1000)
    assert await fleet.settled(ticker) == [UNFINISHED]
    assert fleet.woken == 2
    await courier.tick()
    assert fleet.redis.hkeys(KEYS["out"]) == [b"part/1"]
    fleet.time.pass_by(1000)
    assert await fleet.settled(ticker) == [LONGEST]


# Claiming


async def test_a_due_tick_is_claimed_and_a_courier_is_woken(fleet: Fleet) -> None:
    ticker = await fleet.started(a_schedule())
    await fleet.minutes(0.5, ticker)
    assert (fleet.runs(), fleet.woken) == ([], 0)
    await fleet.minutes(0.5, ticker)
    assert fleet.runs() == [1]
    assert fleet.woken >= 1
    await fleet.minutes(1, ticker)
    assert fleet.runs() == [1, 2]


async def test_a_message_that_schedules_have_changed_ends_the_pause(fleet: Fleet) -> None:
    ticker = await fleet.started(a_schedule())
    assert not ticker.woken.is_set()
    fleet.latest.bus.publish(SchedulesChanged())
    assert ticker.woken.is_set()


async def test_of_many_executors_one_makes_the_job_of_a_tick(fleet: Fleet) -> None:
    tickers = [await fleet.started(a_schedule()) for _ in range(5)]
    for _ in range(10):
        fleet.time.pass_by(MINUTE)
        await asyncio.gather(*(ticker.tick() for ticker in tickers))
    assert fleet.runs() == [*range(1, 11)]
    assert (await fleet.state())["runs"] == "10"


async def test_an_executor_that_stops_when_it_has_just_looked_claims_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it leave a coroutine behind that was never awaited: Python would warn of it."""
    ticker = await fleet.started(a_schedule())
    fleet.time.pass_by(MINUTE)
    run = fleet.broker.run

    async def stopping_run(verb: Any) -> Any:
        reply = await run(verb)
        asyncio.get_running_loop().call_soon(tick.cancel)
        return reply

    monkeypatch.setattr(fleet.broker, "run", stopping_run)
    tick = asyncio.create_task(ticker.tick())
    await asyncio.wait([tick])
    assert tick.cancelled()
    assert fleet.runs() == []
    gc.collect()


async def test_many_schedules_that_are_due_at_once_are_all_claimed(fleet: Fleet) -> None:
    ticker = await fleet.started(*(a_schedule(f"s{n}") for n in range(250)))
    await fleet.minutes(1, ticker)
    assert all(fleet.runs(f"s{n}") == [1] for n in range(250))


async def test_what_was_left_on_its_way_is_handed_over_by_another_executor(fleet: Fleet) -> None:
    await fleet.minutes(1, await fleet.started(a_schedule()))
    fleet.woken = 0
    fleet.time.pass_by(250)
    assert await fleet.settled(fleet.joins(a_schedule())) == [0.25]
    assert fleet.woken == 1


async def test_a_run_that_is_put_off_is_made_when_it_is_due_and_scheduled_for_later(fleet: Fleet) -> None:
    schedule = a_schedule(jitter_ms=30_000)
    await fleet.minutes(1, await fleet.started(schedule))
    (job,) = await fleet.arrive()
    assert job.carried["at_ms"] == schedule.put_off(NOW + MINUTE)


async def test_the_job_of_a_tick_is_remembered_for_a_day_after_its_end(fleet: Fleet) -> None:
    await fleet.minutes(1, await fleet.started(a_schedule()))
    await fleet.end()
    record = fleet.mail.record(f"cron.report.{NOW + MINUTE}")
    assert 86_300_000 < fleet.redis.pttl(record) <= 86_400_000


# Late, and missed


async def test_late_ticks_all_run_while_an_executor_is_there(fleet: Fleet) -> None:
    ticker = await fleet.started(a_schedule(every_ms=10_000))
    fleet.time.pass_by(45_000)
    await fleet.settled(ticker)
    assert len(fleet.runs()) == 4


POLICIES: list[tuple[str, list[int]]] = [
    ("none", []),
    ("last", [3]),
    ("all:3", [1, 2, 3]),
    ("all:2", [2, 3]),
    ("all:9", [1, 2, 3]),
]


@pytest.mark.parametrize(("catchup", "run"), POLICIES)
async def test_of_the_ticks_that_were_missed_those_run_that_are_to_be_caught_up(
    fleet: Fleet, catchup: str, run: list[int]
) -> None:
    schedule = a_schedule(catchup=catchup)
    await fleet.started(schedule)
    await fleet.silence(3.5, newcomer := fleet.joins(schedule))
    assert fleet.runs() == run
    assert int((await fleet.state()).get("skipped", 0)) == 3 - len(run)
    await fleet.minutes(1, newcomer)
    assert fleet.runs() == [*run, 4]


@pytest.mark.parametrize(("catchup", "run"), POLICIES)
async def test_executors_that_come_back_together_agree_on_what_was_missed(
    fleet: Fleet, catchup: str, run: list[int]
) -> None:
    schedule = a_schedule(catchup=catchup)
    await fleet.started(schedule)
    fleet.time.pass_by(3 * MINUTE + 500)
    newcomers = [fleet.joins(schedule) for _ in range(5)]
    await asyncio.gather(*(ticker.tick() for ticker in newcomers))
    await fleet.settled(*newcomers)
    assert fleet.runs() == run


async def test_what_was_missed_stays_missed_when_the_one_who_found_out_dies(fleet: Fleet) -> None:
    await fleet.started(a_schedule())
    await fleet.silence(3.5)
    await fleet.broker.run(verbs.schedules.look(KEYS, SERVICE, "dying", again=False, longest_ms=4000))
    fleet.time.pass_by(500)
    await fleet.settled(fleet.joins(a_schedule()))
    assert fleet.runs() == []


async def test_a_tick_that_an_executor_saw_and_did_not_live_to_claim_runs(fleet: Fleet) -> None:
    colleague = await fleet.started(a_schedule())
    fleet.time.pass_by(MINUTE)
    await fleet.broker.run(verbs.schedules.look(KEYS, SERVICE, "dying", again=True, longest_ms=4000))
    fleet.time.pass_by(900)
    await fleet.settled(colleague)
    assert fleet.runs() == [1]


async def test_catching_up_very_many_runs_takes_its_time_and_loses_none(fleet: Fleet) -> None:
    schedule = a_schedule(catchup="all:1000")
    await fleet.started(schedule)
    await fleet.silence(5000.5, newcomer := fleet.joins(schedule))
    assert fleet.runs() == [*range(4001, 5001)]
    await fleet.minutes(1, newcomer)
    assert fleet.runs() == [*range(4001, 5002)]


async def test_no_claim_writes_more_than_a_hundred_jobs_or_a_megabyte(fleet: Fleet) -> None:
    many, large = (
        a_schedule("many", every_ms=100),
        a_schedule("large", every_ms=5000, args=b'[["%s"],{}]' % (b"x" * 300_000)),
    )
    ticker = await fleet.started(many, large)
    fleet.time.pass_by(50_000)
    await ticker.tick()
    states = [await fleet.state(name) for name in ("many", "large")]
    assert [state["runs"] for state in states] == ["100", "3"]
    await fleet.settled(ticker)
    states = [await fleet.state(name) for name in ("many", "large")]
    assert [state["runs"] for state in states] == ["500", "10"]
    assert not any("skipped" in state for state in states)


async def test_nothing_is_caught_up_that_came_due_before_the_schedule_was_made(fleet: Fleet) -> None:
    await fleet.started()
    fleet.time.pass_by(60 * MINUTE)
    ticker = await fleet.started(a_schedule(catchup="all:9"))
    await fleet.minutes(1, ticker)
    assert fleet.runs() == [61]


async def test_a_paused_schedule_misses_nothing(fleet: Fleet) -> None:
    schedule = a_schedule(catchup="all:9")
    ticker = await fleet.started(schedule)
    await fleet.broker.run(verbs.schedules.schedule(KEYS, "pause", "report"))
    await fleet.minutes(3, ticker)
    resumed = schedule.next_after(fleet.time.now())
    await fleet.broker.run(verbs.schedules.schedule(KEYS, "resume", "report", next_ms=resumed))
    await fleet.minutes(1, ticker)
    assert fleet.runs() == [4]


async def test_when_the_servers_clock_is_set_back_no_tick_runs_twice_and_none_is_lost(fleet: Fleet) -> None:
    ticker = await fleet.started(a_schedule())
    await fleet.minutes(2, ticker)
    fleet.time.pass_by(-5 * MINUTE)
    await fleet.minutes(7, ticker)
    assert fleet.runs() == [1, 2, 3, 4]
    assert (await fleet.state())["runs"] == "4"


# While the run before goes on


Life = Callable[[Fleet], Any]


async def on_its_way(_: Fleet) -> None: ...
async def sent(fleet: Fleet) -> None:
    await fleet.arrive()


async def executing(fleet: Fleet) -> None:
    await fleet.begin()


async def to_be_retried(fleet: Fleet) -> None:
    await fleet.end(retried(3600, FAILURE))


async def successful(fleet: Fleet) -> None:
    await fleet.end()


async def dead(fleet: Fleet) -> None:
    await fleet.end(died(FAILURE, 1, 60_000))


async def cancelled(fleet: Fleet) -> None:
    (job,) = await fleet.arrive()
    await fleet.broker.run(verbs.jobs.cancel(fleet.mail, [job.key], LIFETIMES))


async def forgotten(fleet: Fleet) -> None:
    await fleet.end()
    fleet.redis.delete(
        *cast("list[bytes]", fleet.redis.keys("*:j:*")), *cast("list[bytes]", fleet.redis.keys("*:r:*"))
    )


unfinished = pytest.mark.parametrize("life", [on_its_way, sent, executing, to_be_retried])
finished = pytest.mark.parametrize("life", [successful, dead, cancelled, forgotten])


@unfinished
@pytest.mark.audit(unfinished=True)
async def test_another_run_starts_when_overlapping_is_allowed(fleet: Fleet, life: Life) -> None:
    await fleet.minutes(1, ticker := await fleet.started(a_schedule(overlap="allow")))
    await life(fleet)
    await fleet.minutes(1, ticker)
    assert (await fleet.state())["runs"] == "2"


@unfinished
@pytest.mark.audit(unfinished=True)
async def test_the_run_is_left_out_when_it_is_to_be_skipped(fleet: Fleet, life: Life) -> None:
    await fleet.minutes(1, ticker := await fleet.started(a_schedule(overlap="skip")))
    await life(fleet)
    await fleet.minutes(1, ticker)
    state = await fleet.state()
    assert (state["runs"], state["skipped"]) == ("1", "1")


@unfinished
@pytest.mark.audit(unfinished=True)
async def test_the_run_waits_when_it_is_to_queue(fleet: Fleet, life: Life) -> None:
    await fleet.minutes(1, ticker := await fleet.started(a_schedule(overlap="queue")))
    await life(fleet)
    await fleet.minutes(2, ticker)
    assert (await fleet.state())["runs"] == "1"
    assert await fleet.queued() == [2, 3]


@finished
@pytest.mark.parametrize("overlap", ["skip", "queue"])
async def test_when_the_run_before_has_ended_the_next_one_starts(
    fleet: Fleet, life: Life, overlap: str
) -> None:
    await fleet.minutes(1, ticker := await fleet.started(a_schedule(overlap=overlap)))
    await life(fleet)
    await fleet.minutes(1, ticker)
    assert (await fleet.state())["runs"] == "2"
    assert await fleet.queued() == []


async def test_runs_that_queue_start_one_after_the_other_in_order(fleet: Fleet) -> None:
    ticker = await fleet.started(a_schedule(overlap="queue"))
    await fleet.minutes(1, ticker)
    await fleet.minutes(3, ticker)
    order = list[str]()
    for _ in range(4):
        fleet.time.pass_by(250)
        assert await fleet.settled(ticker) == [0.25]
        order += [job.id.rpartition(".")[2] for job in await fleet.arrive()]
        await fleet.end()
        fleet.time.pass_by(250)
        await fleet.settled(ticker)
    assert [(int(due) - NOW) // MINUTE for due in order] == [1, 2, 3, 4]
    assert await fleet.queued() == []


async def test_executors_that_look_together_start_one_of_the_runs_that_queue(fleet: Fleet) -> None:
    tickers = [await fleet.started(a_schedule(overlap="queue")) for _ in range(4)]
    await fleet.minutes(1, *tickers)
    await fleet.minutes(3, *tickers)
    await fleet.end()
    for _ in range(5):
        fleet.time.pass_by(250)
        await asyncio.gather(*(ticker.tick() for ticker in tickers))
    assert fleet.runs() == [2]
    assert await fleet.queued() == [3, 4]


async def test_a_tick_queues_behind_those_that_wait_already(fleet: Fleet) -> None:
    ticker = await fleet.started(a_schedule(overlap="queue"))
    await fleet.minutes(1, ticker)
    await fleet.minutes(1, ticker)
    await fleet.end()
    fleet.time.pass_by(MINUTE)
    verb = verbs.schedules.look(KEYS, SERVICE, "", again=True, longest_ms=4000)
    await fleet.broker.run(verb)  # another executor has the turn
    await ticker.tick()
    assert await fleet.queued() == [2, 3]


async def test_runs_that_queue_are_bounded(fleet: Fleet) -> None:
    ticker = await fleet.started(a_schedule(overlap="queue", every_ms=40))
    for _ in range(3):
        fleet.time.pass_by(20_000)
        await fleet.settled(ticker)
    waiting = (await fleet.broker.ask(verbs.schedules.queued(KEYS, ["report"])))["report"]
    assert len(waiting) == 1000
    assert int((await fleet.state())["skipped"]) == 1500 - 1 - 1000


async def test_runs_of_a_paused_schedule_wait(fleet: Fleet) -> None:
    ticker = await fleet.started(a_schedule(overlap="queue"))
    await fleet.minutes(1, ticker)
    await fleet.minutes(1, ticker)
    await fleet.end()
    await fleet.broker.run(verbs.schedules.schedule(KEYS, "pause", "report"))
    await fleet.minutes(1, ticker)
    assert await fleet.queued() == [2]


async def test_several_late_runs_of_a_schedule_that_must_not_overlap(fleet: Fleet) -> None:
    ticker = await fleet.started(a_schedule("skip", overlap="skip"), a_schedule("queue", overlap="queue"))
    fleet.time.pass_by(MINUTE)
    for name in ("skip", "queue"):
        assert (await fleet.state(name))["next"] == str(NOW + MINUTE)
    await fleet.settled(ticker)
    fleet.time.pass_by(MINUTE)
    assert (fleet.runs("skip"), fleet.runs("queue")) == ([1], [1])


# What went wrong


async def test_the_last_error_is_kept(fleet: Fleet) -> None:
    ticker = await fleet.started(a_schedule())
    await fleet.minutes(1, ticker)
    await fleet.end(died(FAILURE, 1, 60_000))
    failed_at = fleet.time.now()
    await fleet.minutes(1, ticker)
    await fleet.end()
    await fleet.minutes(1, ticker)
    state = await fleet.state()
    assert (state["last_error"], state["last_error_at"]) == ("ValueError: no such user", str(failed_at))


async def test_an_error_that_a_retry_has_overcome_is_none_of_the_schedule(fleet: Fleet) -> None:
    ticker = await fleet.started(a_schedule())
    await fleet.minutes(1, ticker)
    await fleet.end(retried(0, FAILURE))
    await fleet.broker.run(verbs.queues.promote(fleet.mail, 10))
    await fleet.end()
    await fleet.minutes(1, ticker)
    assert "last_error" not in await fleet.state()


async def test_a_definition_of_a_later_version_is_left_to_those_who_can_read_it(
    fleet: Fleet, logged: list[EventDict]
) -> None:
    ticker = await fleet.started(a_schedule("readable"))
    strange = a_schedule("strange").to_wire()[:-1] + b',"shards":4}'
    await fleet.broker.run(verbs.schedules.schedule(KEYS, "put", "strange", strange, NOW + MINUTE))
    before = await fleet.state("strange")
    fleet.time.pass_by(MINUTE)
    (pause,) = await fleet.settled(ticker)
    assert 0 < pause <= 1.0
    assert fleet.runs("readable") == [1]
    assert await fleet.state("strange") == before
    (complaint,) = complaints(logged)
    assert complaint.startswith("strange: ValueError: the schedule cannot be read")
    await fleet.broker.run(
        verbs.schedules.schedule(KEYS, "put", "strange", a_schedule("strange").to_wire(), NOW + MINUTE)
    )
    await fleet.settled(ticker)
    assert fleet.runs("strange") == [1]


async def test_trouble_with_one_schedule_holds_up_no_other(fleet: Fleet, logged: list[EventDict]) -> None:
    ticker = await fleet.started(a_schedule("a"), a_schedule("b"))
    await fleet.minutes(1, ticker)
    record = fleet.mail.record(f"cron.a.{NOW + MINUTE}")
    await fleet.arrive()
    kept = cast("bytes", fleet.redis.dump(record))
    fleet.redis.set(record, "what?")
    await fleet.minutes(1, ticker)
    assert (fleet.runs("a"), fleet.runs("b")) == ([], [2])
    assert complaints(logged)[0].startswith("a: ReplyError: WRONGTYPE")
    fleet.redis.restore(record, 0, kept, replace=True)
    await fleet.settled(ticker)
    assert fleet.runs("a") == [2]


# Those that cannot be claimed


async def unreadable(fleet: Fleet, number: int, first_ms: int = NOW + 1) -> list[str]:
    """So many schedules that only a later version can read; answers their names."""
    names = [f"later{n:04}" for n in range(number)]
    for name in names:
        strange = a_schedule(name).to_wire()[:-1] + b',"shards":4}'
        await fleet.broker.run(verbs.schedules.schedule(KEYS, "put", name, strange, first_ms))
    return names


async def test_a_readable_schedule_runs_on_time_behind_hundreds_that_cannot_be_read(fleet: Fleet) -> None:
    ticker = await fleet.started(a_schedule())
    await unreadable(fleet, 250)
    for minute in range(1, 5):
        fleet.time.stop_at(NOW + minute * MINUTE)
        await fleet.settled(ticker)
        assert fleet.runs() == [*range(1, minute + 1)]


async def test_between_two_passes_what_comes_due_is_found_at_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "monotonic", lambda: 1000.0)
    ticker = await fleet.started(a_schedule())
    await unreadable(fleet, 250)
    fleet.time.pass_by(1000)
    assert await fleet.settled(ticker) == [1.0]
    fleet.time.stop_at(NOW + MINUTE)
    assert await ticker.tick() == 0.0
    assert fleet.runs() == [1]


async def test_the_more_are_passed_over_the_less_often(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = 1000.0
    monkeypatch.setattr(clock, "monotonic", lambda: passed)
    ticker = await fleet.started()
    await unreadable(fleet, 250)
    fleet.time.pass_by(1000)
    looks = [await looks_until_it_sleeps(ticker)]
    for _ in range(4):
        passed += 0.25
        looks.append(await looks_until_it_sleeps(ticker))
    assert looks == [3, 1, 3, 1, 3]


async def looks_until_it_sleeps(ticker: Ticker) -> int:
    number = 1
    while await ticker.tick() == 0.0:
        number += 1
    return number


async def test_those_that_cannot_be_read_run_when_a_worker_comes_that_can(fleet: Fleet) -> None:
    old = await fleet.started()
    names = await unreadable(fleet, 250, NOW + MINUTE)
    fleet.time.pass_by(MINUTE)
    before = [await fleet.state(name) for name in names]
    await fleet.settled(old)
    assert [await fleet.state(name) for name in names] == before
    newer = fleet.joins()
    newer.read = later_version
    await fleet.settled(newer)
    assert [fleet.runs(name) for name in names] == [[1]] * 250
    fleet.time.pass_by(MINUTE)
    await asyncio.gather(fleet.settled(old), fleet.settled(newer))
    assert [fleet.runs(name) for name in names] == [[1, 2]] * 250


def later_version(definition: bytes) -> WireSchedule:
    """Reads what a later version has written."""
    return WireSchedule.from_wire(definition.replace(b',"shards":4', b""))


async def test_it_logs_which_it_cannot_claim_once_a_minute(
    fleet: Fleet, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 1000.0
    monkeypatch.setattr(clock, "monotonic", lambda: passed)
    ticker = await fleet.started()
    names = await unreadable(fleet, 130)
    fleet.time.pass_by(1000)

    def stuck() -> list[tuple[object, object]]:
        return [(line["schedules"], line["number"]) for line in logged if line["event"] == "schedules_stuck"]

    for _ in range(50):
        passed += 1
        await fleet.settled(ticker)
    assert stuck() == [(names[:20], 130)]
    assert [line["log_level"] for line in logged if line["event"] == "schedules_stuck"] == ["warning"]
    await fleet.broker.run(verbs.schedules.schedule(KEYS, "put", "another", b"what?", NOW + 1))
    for _ in range(5):
        passed += 1
        await fleet.settled(ticker)
    assert stuck()[1:] == [(["another"], 1)]
    passed += 60
    await fleet.settled(ticker)
    assert stuck()[2:] == [(sorted([*names, "another"])[:20], 131)]


async def test_claims_that_fail_again_and_again_hold_up_no_other(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 1000.0
    monkeypatch.setattr(clock, "monotonic", lambda: passed)
    ticker = await fleet.started(a_schedule("z"), *(a_schedule(f"s{n}") for n in range(150)))
    await fleet.minutes(1, ticker)
    while await fleet.arrive():
        pass
    records = [fleet.mail.record(f"cron.s{n}.{NOW + MINUTE}") for n in range(150)]
    kept = [cast("bytes", fleet.redis.dump(record)) for record in records]
    for record in records:
        fleet.redis.set(record, "what?")
    await fleet.minutes(1, ticker)
    assert fleet.runs("z") == [2]
    assert [fleet.runs(f"s{n}") for n in range(150)] == [[]] * 150
    for record, content in zip(records, kept, strict=True):
        fleet.redis.restore(record, 0, content, replace=True)
    passed += 1
    await fleet.settled(ticker)
    assert [fleet.runs(f"s{n}") for n in range(150)] == [[2]] * 150


async def test_a_claim_that_can_never_succeed_does_not_keep_it_busy(
    fleet: Fleet, logged: list[EventDict]
) -> None:
    ticker = await fleet.started(a_schedule("a"), a_schedule("b"))
    fleet.redis.hset(KEYS.schedule("a"), "next", f"0{NOW + MINUTE}")
    fleet.time.pass_by(MINUTE)
    await fleet.settled(ticker)
    assert (fleet.runs("a"), fleet.runs("b")) == ([], [1])
    (complaint,) = complaints(logged)
    assert complaint.startswith("a: ValueError: the claim is refused")


async def test_a_schedule_with_much_to_catch_up_among_the_stuck_is_caught_up(fleet: Fleet) -> None:
    schedule = a_schedule(catchup="all:1000")
    await fleet.started(schedule)
    await unreadable(fleet, 150)
    await fleet.silence(1000.5, fleet.joins(schedule))
    assert fleet.runs() == [*range(1, 1001)]


async def test_trouble_costs_one_tick(fleet: Fleet) -> None:
    ticker = await fleet.started(a_schedule())
    due = cast("bytes", fleet.redis.dump(KEYS["cron:due"]))
    fleet.redis.set(KEYS["cron:due"], "what?")
    fleet.time.pass_by(MINUTE)
    with pytest.raises(ReplyError):
        await ticker.tick()
    fleet.redis.restore(KEYS["cron:due"], 0, due, replace=True)
    await fleet.settled(ticker)
    assert fleet.runs() == [1]


# Declaring


async def test_after_a_flush_the_schedules_of_the_code_come_back_at_the_next_look(
    fleet: Fleet, server: Server
) -> None:
    ticker = await fleet.started(a_schedule())
    server.flush()
    fleet.time.stop_at(NOW + 10 * MINUTE)
    await fleet.settled(ticker)
    await fleet.minutes(1, ticker)
    assert fleet.runs() == [11]


async def test_an_older_version_goes_on_claiming_by_the_later_ones_schedules(
    fleet: Fleet, logged: list[EventDict]
) -> None:
    old = await fleet.started(a_schedule("kept"), a_schedule("vanished"))
    await fleet.started(a_schedule("kept", args=b"[[2],{}]"), a_schedule("new"))
    await fleet.minutes(1, old)
    assert [fleet.runs(name) for name in ("kept", "vanished", "new")] == [[1], [], [1]]
    assert [job.args for job in await fleet.arrive() if "kept" in job.id] == [b"[[2],{}]"]


async def test_an_older_version_asks_again_now_and_then_and_logs_it_once(
    fleet: Fleet, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = a_schedule(), a_schedule(every_ms=1000)
    early = await fleet.started(old)
    await fleet.started(new)
    passed = 0.0
    monotonic = clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: monotonic() + passed)
    for _ in range(5):
        passed += 11
        assert await early.tick() == 0.0
        await fleet.settled(early)
    assert [line["event"] for line in logged].count("schedules_of_a_later_version_hold") == 1
    fleet.time.pass_by(MINUTE)
    passed += 11
    assert await early.tick() == 0.0
    assert (
        await fleet.broker.run(verbs.schedules.look(KEYS, SERVICE, "", again=True, longest_ms=1))
    ).version != ""
    assert await fleet.settled(early) == [LONGEST]
    assert (await fleet.state())["next"] == str(NOW + 2 * MINUTE)


# Deciding, which is pure


def look(now_ms: int, awake_ms: int = 0) -> Look:
    return Look(now_ms, awake_ms, "", -1, 0, 0, False, [], [])


def seen(schedule: WireSchedule, next_ms: int, queued: bytes = b"") -> Seen:
    return Seen(schedule.name, schedule.to_wire(), next_ms, "", False, queued)


def test_a_schedule_that_ends_has_no_next() -> None:
    schedule = a_schedule(end_ms=2 * MINUTE)
    claim = decide(schedule, seen(schedule, MINUTE), look(5 * MINUTE), busy=False, before=None)
    assert [job.key.rpartition(".")[2] for job in claim.jobs] == [str(MINUTE), str(2 * MINUTE)]
    assert (claim.next_ms, claim.skipped) == (None, 0)


@pytest.mark.parametrize(
    ("overlap", "busy", "waiting", "start", "queue"),
    [
        ("allow", False, b"", 3, None),
        ("allow", True, b"", 3, None),
        ("skip", False, b"", 1, None),
        ("skip", True, b"", 0, None),
        ("queue", False, b"", 1, [2, 3]),
        ("queue", True, b"", 0, [1, 2, 3]),
        ("queue", False, b"[0]", 0, [0, 1, 2, 3]),
    ],
)
def test_what_becomes_of_three_runs(
    overlap: str, busy: bool, waiting: bytes, start: int, queue: list[int] | None
) -> None:
    schedule = a_schedule(overlap=overlap)
    claim = decide(schedule, seen(schedule, MINUTE, waiting), look(3 * MINUTE), busy=busy, before=None)
    queued = None if claim.queued is None else [due // MINUTE for due in claim.queued]
    assert (len(claim.jobs), queued) == (start, queue)
    waits = 0 if queue is None else len([due for due in queue if due])
    assert claim.skipped == 3 - start - waits
    assert claim.next_ms == 4 * MINUTE


def test_a_job_that_has_never_begun_has_failed_at_no_time() -> None:
    schedule = a_schedule()
    before = JobInfo(id="mail:1", task="a:b", queue="mail", status=Status.DEAD, error=FAILURE)
    claim = decide(schedule, seen(schedule, MINUTE), look(MINUTE), busy=False, before=before)
    assert (claim.last_error, claim.last_error_ms) == ("ValueError: no such user", None)


# Services


async def test_a_second_service_removes_nothing_of_the_first(fleet: Fleet, logged: list[EventDict]) -> None:
    shop = await fleet.started(a_schedule())
    other = await fleet.started(service="billing.tasks:shop")
    await fleet.minutes(2, shop, other)
    assert fleet.runs() == [1, 2]
    assert [line for line in logged if line["log_level"] == "warning"] == []


async def test_a_removal_names_what_it_removes(fleet: Fleet, logged: list[EventDict]) -> None:
    await fleet.started(a_schedule("a"), a_schedule("b"), a_schedule("c"))
    await fleet.started(a_schedule("b"))
    (warning,) = [line for line in logged if line["event"] == "schedules_removed"]
    assert (warning["log_level"], warning["service"], sorted(warning["schedules"])) == (
        "warning",
        SERVICE,
        ["a", "c"],
    )


async def test_a_service_gets_a_warning_which_names_belong_to_another(
    fleet: Fleet, logged: list[EventDict]
) -> None:
    await fleet.started(a_schedule("a"), a_schedule("same"))
    theirs = a_schedule("a", every_ms=1000), a_schedule("same"), a_schedule("b")
    other = await fleet.started(*theirs, service="billing.tasks:shop")
    await fleet.minutes(1, other)
    (warning,) = [line for line in logged if line["event"] == "schedules_of_another_service"]
    assert (warning["log_level"], warning["service"]) == ("warning", "billing.tasks:shop")
    assert (warning["schedules"], warning["number"]) == ({"a": f"code:{SERVICE}"}, 1)
    assert [fleet.runs(name) for name in ("a", "same", "b")] == [[1], [1], [1]]


async def test_it_gets_the_name_when_the_other_service_is_gone(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 1000.0
    monkeypatch.setattr(clock, "monotonic", lambda: passed)
    await fleet.started(a_schedule(every_ms=3_600_000))
    other = await fleet.started(a_schedule(), service="billing.tasks:shop")
    passed += 10
    fleet.time.pass_by(MINUTE // 2)
    await fleet.settled(other)
    assert (await fleet.state())["source"] == f"code:{SERVICE}"
    passed += 10
    fleet.time.pass_by(MINUTE // 2)
    await fleet.settled(other)
    assert (await fleet.state())["source"] == "code:billing.tasks:shop"
    await fleet.minutes(1, other)
    assert fleet.runs() == [2]


async def test_a_declaration_that_fails_keeps_no_schedule_from_running(
    fleet: Fleet, logged: list[EventDict]
) -> None:
    await fleet.broker.run(
        verbs.schedules.schedule(KEYS, "put", "due", a_schedule("due").to_wire(), NOW + MINUTE)
    )
    fleet.redis.set(KEYS.schedule("broken"), "what?")
    ticker = await fleet.started(a_schedule("broken"))
    await fleet.minutes(1, ticker)
    assert fleet.runs("due") == [1]
    (warning,) = [line for line in logged if line["event"] == "trouble"]
    assert warning["what"] == "declaring schedules"
    fleet.redis.delete(KEYS.schedule("broken"))
    await fleet.minutes(1, ticker)
    assert (await fleet.state("broken"))["source"] == f"code:{SERVICE}"


async def test_thousands_of_schedules_are_declared_a_page_per_tick_while_others_run(fleet: Fleet) -> None:
    await fleet.broker.run(
        verbs.schedules.schedule(KEYS, "put", "due", a_schedule("due", catchup="last").to_wire(), NOW)
    )
    many = [a_schedule(f"s{n:04}") for n in range(1050)]
    ticker = fleet.joins(*many)
    assert await ticker.tick() == 0.0
    assert fleet.redis.scard(KEYS["cron:names"]) == 101
    assert fleet.runs("due") == [0]
    for _ in range(10):
        assert await ticker.tick() == 0.0
    assert fleet.redis.scard(KEYS["cron:names"]) == 1051
    assert await ticker.tick() > 0.0


async def test_large_schedules_are_declared_a_megabyte_at_a_time(fleet: Fleet) -> None:
    large = b'[["%s"],{}]' % (b"x" * 400_000)
    ticker = fleet.joins(*(a_schedule(f"s{n}", args=large) for n in range(5)))
    sizes = list[int]()
    for _ in range(3):
        await ticker.tick()
        sizes.append(fleet.redis.scard(KEYS["cron:names"]))
    assert sizes == [2, 4, 5]


async def test_executors_that_start_together_declare_thousands_together(fleet: Fleet) -> None:
    many = [a_schedule(f"s{n:03}") for n in range(450)]
    tickers = [fleet.joins(*many) for _ in range(4)]
    for _ in range(7):
        await asyncio.gather(*(ticker.tick() for ticker in tickers))
    assert fleet.redis.scard(KEYS["cron:names"]) == 450
    assert await fleet.settled(*tickers) == [LONGEST] * 4
