"""The background duties, tick by tick."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest

from fennelq.app import App
from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import QueueKeys, executors_key, queue_keys
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import Command, as_is
from fennelq.broker.verbs.runs import Settled
from fennelq.model.job import JobFailure
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.outcome import died, succeeded
from fennelq.model.routing import Routing
from fennelq.model.wire import AnyWireJob
from fennelq.worker.bus import JobDue, MessagesArrive, QueuesDiscovered, RoutingChanged
from fennelq.worker.duties.janitor import Janitor
from fennelq.worker.duties.presence import Presence
from fennelq.worker.duties.promoter import Promoter
from fennelq.worker.duties.service import Service, tend
from fennelq.worker.state import State, executor_name
from tests.kit.clock import ServerClock
from tests.kit.jobs import as_sent, sent
from tests.kit.waiting import aeventually
from tests.worker.states import published, state_of

LONGEST = 5.0


def a_job(key: str, **given: Any) -> AnyWireJob:
    fields: dict[str, Any] = {"task": "shop:note", "args": b"[[],{}]", **given}
    return sent("mail", key, **fields)


async def enqueue(broker: Broker, keys: QueueKeys, *jobs: AnyWireJob) -> None:
    await broker.run(verbs.jobs.enqueue(keys, jobs))


async def waiting(broker: Broker, keys: QueueKeys) -> int:
    return await broker.ask(verbs.queues.length(keys, "s"))


# The promoter


class Promoting(Promoter):
    """A promoter of a state that a test changes."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.state = state


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of this process, which stands."""
    moment = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: moment[0])
    return moment


@pytest.fixture
def promoter(broker: Broker, mail: QueueKeys, now: list[float]) -> Promoting:
    del now
    return Promoting(state_of(broker, mail, schedule_interval=LONGEST))


async def test_with_nothing_scheduled_the_promoter_sleeps_as_long_as_it_may(promoter: Promoting) -> None:
    assert LONGEST * 0.75 <= await promoter.tick() <= LONGEST


async def test_the_promoter_sleeps_until_the_next_job_is_due(
    promoter: Promoting, broker: Broker, mail: QueueKeys, server_clock: ServerClock
) -> None:
    server_clock.stop_at(server_clock.now())
    await enqueue(broker, mail, a_job("later", delay_ms=3000), a_job("soon", delay_ms=2000))
    assert await promoter.tick() == 2.0
    assert await waiting(broker, mail) == 0


async def test_the_promoter_moves_what_is_due_and_nothing_else(
    promoter: Promoting, broker: Broker, mail: QueueKeys, server_clock: ServerClock
) -> None:
    server_clock.stop_at(server_clock.now())
    await enqueue(broker, mail, a_job("due", at_ms=1), a_job("later", delay_ms=2000))
    assert await promoter.tick() == 2.0
    assert await waiting(broker, mail) == 1
    assert await broker.ask(verbs.queues.length(mail, "sched")) == 1


async def test_a_promoter_that_has_not_moved_all_that_is_due_comes_again_at_once(
    promoter: Promoting, broker: Broker, mail: QueueKeys
) -> None:
    await enqueue(broker, mail, *(a_job(str(n), at_ms=1) for n in range(150)))
    assert await promoter.tick() == 0
    assert await waiting(broker, mail) == 100
    assert await promoter.tick() >= LONGEST * 0.75
    assert await waiting(broker, mail) == 150


async def test_the_promoter_looks_after_all_queues_at_once(broker: Broker, mail: QueueKeys) -> None:
    other = queue_keys("shop", "other")
    await enqueue(broker, mail, a_job("1", at_ms=1))
    await enqueue(broker, other, a_job("2", at_ms=1))
    await Promoting(state_of(broker, mail, other)).tick()
    assert [await waiting(broker, keys) for keys in (mail, other)] == [1, 1]


def job_due(promoter: Promoting, seconds: float, queue: str = "mail", *, announced: bool = False) -> None:
    """A job is due in so many seconds, as the executor learns from a fetch or from a message."""
    promoter.state.bus.publish(JobDue(seconds, queue, announced))


async def test_the_promoter_is_woken_when_something_is_due_before_its_next_tick(promoter: Promoting) -> None:
    await promoter.tick()
    job_due(promoter, LONGEST * 2)
    assert not promoter.woken.is_set()
    job_due(promoter, 0.01)
    async with asyncio.timeout(20):
        await promoter.woken.wait()


async def test_what_becomes_due_while_the_promoter_asks_is_not_missed(promoter: Promoting) -> None:
    await promoter.tick()
    ticking = asyncio.create_task(promoter.tick())
    await asyncio.sleep(0)  # it has asked, and has no answer yet
    job_due(promoter, 0.01)
    await ticking
    async with asyncio.timeout(20):
        await promoter.woken.wait()


Calls = Callable[[], list[str]]


@pytest.fixture
def promoted(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The queues that the promoter has asked since the last call."""
    asked: list[str] = []
    run = broker.run

    async def noted(verb: Any, *args: Any) -> Any:
        if verb.script.name == "promote":
            asked.append(str(verb.args[0]).removeprefix("fq:{shop/").removesuffix("}:"))
        return await run(verb, *args)

    def asked_since() -> list[str]:
        found = sorted(asked)
        asked.clear()
        return found

    monkeypatch.setattr(broker, "run", noted)
    return asked_since


def promoter_of(broker: Broker, queues: int, **settings: Any) -> Promoting:
    """A promoter of so many queues, to which messages arrive."""
    state = state_of(
        broker,
        *(queue_keys("shop", f"q{number:03}") for number in range(queues)),
        heartbeat_interval=LONGEST,
        schedule_interval=1.0,
        **settings,
    )
    state.note_listening(True)
    return Promoting(state)


async def test_a_queue_that_a_fetch_has_found_empty_lately_is_not_looked_at(
    broker: Broker, now: list[float], promoted: Calls
) -> None:
    promoter = promoter_of(broker, 3)
    promoter.state.note_looked("q001")
    await promoter.tick()
    assert promoted() == ["q000", "q002"]
    now[0] += LONGEST
    promoter.state.note_looked("q002")
    await promoter.tick()
    assert promoted() == ["q000", "q001"]
    now[0] += LONGEST
    await promoter.tick()
    assert promoted() == ["q000", "q001", "q002"]


async def test_a_job_that_is_known_to_be_due_is_promoted_whenever_a_fetch_has_looked(
    broker: Broker, now: list[float], promoted: Calls
) -> None:
    promoter = promoter_of(broker, 1)
    await promoter.tick()
    promoted()
    job_due(promoter, 1.0, "q000")
    now[0] += 1.0
    promoter.state.note_looked("q000")
    await promoter.tick()
    assert promoted() == ["q000"]


async def test_only_the_queue_with_a_due_job_is_promoted(
    broker: Broker, now: list[float], promoted: Calls
) -> None:
    promoter = promoter_of(broker, 3)
    await promoter.tick()
    assert promoted() == ["q000", "q001", "q002"]
    job_due(promoter, 2.0, "q001")
    assert await promoter.tick() == 2.0
    assert promoted() == []
    now[0] += 2.0
    await promoter.tick()
    assert promoted() == ["q001"]
    await promoter.tick()
    assert promoted() == []


async def test_the_earliest_due_time_of_a_queue_counts(
    broker: Broker, now: list[float], promoted: Calls
) -> None:
    promoter = promoter_of(broker, 1)
    await promoter.tick()
    promoted()
    for seconds in (3.0, 1.0, 2.0):
        job_due(promoter, seconds, "q000")
    assert await promoter.tick() == 1.0
    now[0] += 1.0
    await promoter.tick()
    assert promoted() == ["q000"]


async def test_a_due_time_beyond_the_round_is_remembered_when_it_was_announced_to_this_executor_alone(
    broker: Broker, now: list[float], promoted: Calls
) -> None:
    promoter = promoter_of(broker, 1)
    await promoter.tick()
    promoted()
    job_due(promoter, 60.0, "q000")
    assert "q000" not in promoter.due
    job_due(promoter, 60.0, "q000", announced=True)
    assert promoter.due == {"q000": now[0] + 60.0}


async def test_many_queues_are_looked_at_a_page_at_a_time(
    broker: Broker, now: list[float], promoted: Calls
) -> None:
    """Every queue within a round, and within a second per hundred queues when a round is too short for that."""
    for queues, seconds in ((300, LONGEST), (1200, 12.0)):
        promoter, met, start = promoter_of(broker, queues), list[str](), now[0]
        while len(met) < queues:
            pause = await promoter.tick()
            page = promoted()
            assert len(page) == 100
            met += page
            now[0] += pause
        assert (
            sorted(met) == [f"q{number:03}" for number in range(queues)] if queues < 1000 else len(set(met))
        )
        assert now[0] - start <= seconds + 1e-6


async def test_when_messages_arrive_the_promoter_looks_at_everything_at_once(
    broker: Broker, now: list[float], promoted: Calls
) -> None:
    promoter = promoter_of(broker, 150)
    await promoter.tick()
    assert len(promoted()) == 100
    promoter.state.bus.publish(MessagesArrive())
    assert promoter.woken.is_set()
    await promoter.tick()
    assert promoted()[0] == "q000"


async def test_a_due_time_survives_an_error(
    broker: Broker, now: list[float], promoted: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoter = promoter_of(broker, 2)
    await promoter.tick()
    promoted()
    job_due(promoter, 1.0, "q001", announced=True)
    now[0] += 1.0
    with monkeypatch.context() as without_redis:

        async def gone(*_: Any) -> Any:
            raise ConnectionResetError("gone")

        without_redis.setattr(broker, "run", gone)
        with pytest.raises(ConnectionResetError):
            await promoter.tick()
    await promoter.tick()
    assert "q001" in promoted()


async def test_an_executor_that_promoted_nothing_forgets_a_due_time_that_is_far_away(
    broker: Broker, now: list[float]
) -> None:
    """Otherwise a fleet of a hundred would promote at the same moment, for a single job."""
    keys = queue_keys("shop", "q000")
    await enqueue(broker, keys, a_job("soon", delay_ms=2000))
    for colleagues, remembered in ((1, True), (9, True), (100, False)):
        promoter = promoter_of(broker, 1)
        promoter.state.note_colleagues(colleagues)
        await promoter.tick()
        assert ("q000" in promoter.due) == remembered, colleagues
    await enqueue(broker, keys, a_job("due", at_ms=1))
    promoter = promoter_of(broker, 1)
    promoter.state.note_colleagues(100)
    await promoter.tick()
    assert "q000" in promoter.due, "it has promoted one, and may be the only one that knows of the next"


async def test_a_queue_that_is_not_served_any_more_is_not_promoted(
    broker: Broker, now: list[float], promoted: Calls
) -> None:
    promoter = promoter_of(broker, 2)
    await promoter.tick()
    job_due(promoter, 1.0, "q000")
    job_due(promoter, 1.0, "q001")
    promoter.state.serve(Routing({"q001": 1}))
    promoter.state.bus.publish(RoutingChanged(frozenset({"q000"})))
    promoted()
    now[0] += 1.0
    await promoter.tick()
    assert promoted() == ["q001"]


# The janitor


DEAD = died(JobFailure("ValueError", "no such user"), 1, 60_000)


async def bury(broker: Broker, keys: QueueKeys, number: int) -> None:
    """So many dead jobs."""
    await enqueue(broker, keys, *(a_job(str(n)) for n in range(number)))
    lifetimes = Lifetimes(record_ms=60_000, failure_ms=60_000)
    verb = verbs.runs.fetch(keys, consumer="anna", free=number, lanes=["s"], lifetimes=lifetimes)
    settled = [verbs.runs.Settled(d, DEAD) for d in (await broker.run(verb)).deliveries]
    await broker.run(verbs.runs.finish(keys, settled, lifetimes))


async def dead(broker: Broker, keys: QueueKeys) -> int:
    return await broker.ask(verbs.queues.length(keys, "dlq"))


def janitor(broker: Broker, keys: Sequence[QueueKeys], **settings: Any) -> Janitor:
    return Janitor(state_of(broker, *keys, **settings))


async def test_the_janitor_keeps_the_newest_of_too_many_dead(broker: Broker, mail: QueueKeys) -> None:
    await bury(broker, mail, 10)
    await janitor(broker, [mail], dlq_max_len=3).tick()
    kept = await broker.ask(verbs.dead.dead(mail, "", 100))
    assert [letter.key for letter in kept] == ["7", "8", "9"]


async def test_the_janitor_removes_the_dead_that_are_too_old(broker: Broker, mail: QueueKeys) -> None:
    await bury(broker, mail, 3)
    await janitor(broker, [mail], dlq_max_age=3600).tick()
    assert await dead(broker, mail) == 3
    await aeventually(lambda: swept(broker, mail))


async def swept(broker: Broker, keys: QueueKeys) -> bool:
    await janitor(broker, [keys], dlq_max_age=0.05).tick()
    return await dead(broker, keys) == 0


async def test_the_janitor_comes_again_at_once_while_there_is_more(broker: Broker, mail: QueueKeys) -> None:
    other = queue_keys("shop", "other")
    await bury(broker, mail, 100)
    await bury(broker, other, 5)
    duty = janitor(broker, [mail, other], dlq_max_len=0)
    assert await duty.tick() < 0.5
    assert [await dead(broker, keys) for keys in (mail, other)] == [0, 0]
    assert await duty.tick() >= 1


async def test_the_janitor_counts_the_dead_that_the_index_does_not_have(
    broker: Broker, mail: QueueKeys
) -> None:
    """Their index was lost."""
    await bury(broker, mail, 600)
    await broker.ask(Command(["DEL", mail["dlq:g"]], as_is))
    duty = janitor(broker, [mail])
    assert await duty.tick() < 0.5
    assert not (await broker.run(verbs.dead.groups(mail))).is_complete
    while await duty.tick() < 1:
        pass
    index = await broker.run(verbs.dead.groups(mail))
    assert (index.is_complete, [group.jobs for group in index.groups]) == (True, [600])


async def test_the_janitor_cleans_a_page_of_queues_at_a_time_and_comes_back_to_those_with_more(
    broker: Broker, mail: QueueKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bury(broker, mail, 150)
    queues = [mail, *(queue_keys("shop", f"q{n:03}") for n in range(249))]
    duty = janitor(broker, queues, dlq_max_len=0, maintenance_interval=3.0)
    cleaned: list[list[str]] = []
    run = broker.run

    async def noted(verb: Any, *args: Any) -> Any:
        if verb.name == "gc":
            cleaned[-1].append(str(verb.args[0]))
        return await run(verb, *args)

    monkeypatch.setattr(broker, "run", noted)
    pauses: list[float] = []
    for _ in range(5):
        cleaned.append([])
        pauses.append(await duty.tick())
    prefixes = [keys.prefix for keys in queues]
    assert [sorted(page) for page in cleaned] == [
        sorted(prefixes[:100]),
        [mail.prefix],
        prefixes[100:200],
        prefixes[200:],
        sorted(prefixes[:100]),
    ]
    assert pauses == [0.05] + [8.0] * 4


# Presence


def executor_of(broker: Broker) -> State:
    """One that serves `mail`, its default queue."""
    return state_of(broker, queue_keys("shop", "mail"), default_queue="mail", heartbeat_interval=2.5)


async def test_an_executor_publishes_facts_about_itself(broker: Broker) -> None:
    state = executor_of(broker)
    for _ in range(3):
        state.slots.take()
    assert await Presence(state).tick() == 2.5
    facts = orjson.loads((await broker.ask(verbs.executors.known_executors("shop")))["anna"])
    assert (facts["pid"], facts["running"], facts["interval"]) == (os.getpid(), 3, 2.5)
    assert abs(facts["beat_ms"] / 1000 - time.time()) < 60


async def test_an_executor_notes_its_queues_and_learns_of_others(broker: Broker) -> None:
    state = executor_of(broker)
    state.serve(Routing({"mail": 1, "default": 1}))
    discovered, duty = published(state, QueuesDiscovered), Presence(state)
    await duty.tick()
    assert await broker.ask(verbs.queues.known_queues("shop")) == {"mail", "default"}
    await broker.ask(verbs.queues.note_queues("shop", ["brand.new"]))
    await duty.tick()
    assert discovered[-1].names == {"mail", "default", "brand.new"}


async def test_after_a_flush_an_executor_notes_its_queues_again(broker: Broker) -> None:
    duty = Presence(executor_of(broker))
    await duty.tick()
    await broker.ask(Command(["FLUSHALL"], bytes))
    await duty.tick()
    assert await broker.ask(verbs.queues.known_queues("shop")) == {"mail"}


async def test_executors_that_have_been_silent_for_hours_are_forgotten(broker: Broker) -> None:
    """Also those of an earlier version, whose facts no list of the living knows."""
    now = await broker.ask(verbs.server.now())
    for name, age in (("berta", 3_700_000), ("clara", 60_000)):
        facts = orjson.dumps({"beat_ms": now - age})
        await broker.ask(Command(["HSET", executors_key("shop"), name, facts], int))
    await broker.ask(Command(["HSET", executors_key("shop"), "dora", b"rubbish"], int))
    await Presence(executor_of(broker)).tick()
    known = await broker.ask(verbs.executors.known_executors("shop"))
    assert known.keys() == {"anna", "clara"}


async def test_the_executors_of_a_running_app_publish_what_they_do(app: App) -> None:
    from tests.kit.workers import running

    async with running(app, concurrency=7) as executor:
        facts = await aeventually(lambda: facts_of(app, executor.name))
    assert facts["concurrency"] == 7
    assert facts["queues"] == ["default"]
    assert facts["running"] == 0
    assert facts["every_queue"] is True
    assert facts.keys().isdisjoint({"lanes", "too_old_for"})


async def test_an_executor_publishes_what_it_cannot_run_and_what_it_does_not_serve(app: App) -> None:
    from tests.kit.workers import running

    async def facts_with_misfits(executor: str) -> dict[str, Any] | None:
        facts = await facts_of(app, executor)
        return facts if facts and "too_old_for" in facts else None

    async with running(app, queues="mail", priorities=["high", "normal"]) as executor:
        result = await app.client.send(as_sent(app.describe("tests.worker.shop:dubble", queue="mail")))
        facts = await aeventually(lambda: facts_with_misfits(executor.name))
        await aeventually(result.cancel)
    assert facts["lanes"] == ["s:high", "s"]
    assert "every_queue" not in facts
    assert facts["too_old_for"] == [
        {
            "queue": "mail",
            "task": "tests.worker.shop:dubble",
            "reason": "unknown_task",
            "why": "unknown task 'tests.worker.shop:dubble': did you mean 'tests.worker.shop:double'?",
        }
    ]


async def facts_of(app: App, executor: str) -> dict[str, Any] | None:
    known = await app.client.ask(verbs.executors.known_executors("shop"))
    return orjson.loads(known[executor]) if executor in known else None


# Any duty


class Duty(Service):
    """Ticks as it is facts_with_misfits to, and counts."""

    name = "duty"

    def __init__(self, *ticks: float | Exception) -> None:
        self._ticks = list(ticks)
        self.ticked = 0
        self.woken = asyncio.Event()
        self.done = asyncio.Event()

    async def tick(self) -> float:
        self.ticked += 1
        tick = self._ticks.pop(0) if self._ticks else 1000.0
        if not self._ticks:
            self.done.set()
        if isinstance(tick, Exception):
            raise tick
        return tick


async def tended(duty: Duty) -> None:
    """Until it has nothing more to do."""
    tending = asyncio.create_task(tend(duty, retry_after=0.001))
    try:
        async with asyncio.timeout(20):
            await duty.done.wait()
    finally:
        tending.cancel()
        await asyncio.gather(tending, return_exceptions=True)


async def test_a_duty_is_done_again_after_the_pause_it_asks_for() -> None:
    duty = Duty(0.001, 0, 0.001, 1000)
    await tended(duty)
    assert duty.ticked == 4


async def test_an_error_costs_one_tick_and_never_the_duty() -> None:
    duty = Duty(ValueError("once"), ReplyError("READONLY"), OSError(), 0, 1000)
    await tended(duty)
    assert duty.ticked == 5


async def test_a_duty_that_goes_wrong_again_and_again_complains_once(logged: list[Any]) -> None:
    await tended(Duty(*(ValueError(f"number {n}") for n in range(50))))
    assert [line["error"] for line in logged if line["event"] == "trouble"] == ["ValueError: number 0"]


async def test_a_duty_that_is_woken_does_not_sleep_on() -> None:
    duty = Duty(1000, 1000)
    duty.woken.set()
    await tended(duty)
    assert duty.ticked == 2


def test_the_longest_name_of_an_executor_leaves_plain_records_packed(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis keeps a hash packed while no field is longer than 64 bytes; unpacked it takes more than twice as much."""
    monkeypatch.setattr(socket, "gethostname", lambda: "ip-10-123-123-123.eu-central-1.compute.internal")
    monkeypatch.setattr(os, "getpid", lambda: 4_194_304)
    keys, lifetimes = queue_keys("shop", "mail"), Lifetimes(1000, 1000)
    broker = BlockingBroker(address_of(redis_url))
    broker.run(verbs.jobs.enqueue(keys, [a_job("1")]))
    fetch = verbs.runs.fetch(keys, consumer=executor_name(), free=1, lanes=["s"], lifetimes=lifetimes)
    (delivery,) = broker.run(fetch).deliveries
    assert broker.ask(Command(["OBJECT", "ENCODING", keys.record("1")], as_is)) == b"listpack"
    broker.run(verbs.runs.finish(keys, [Settled(delivery, succeeded(b"1", 1000))], lifetimes))
    broker.close()
