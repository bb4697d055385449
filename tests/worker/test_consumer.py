"""The consumer: it takes what there are slots for, in order, strands nothing, and survives what happens to Redis."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import pytest
from structlog.typing import EventDict

from fennelq import App
from fennelq.broker import verbs
from fennelq.broker.broker import ANSWER_TIMEOUT
from fennelq.broker.keys import LANES, QueueKeys, queue_keys
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import Verb
from fennelq.model.job import Priority
from fennelq.model.routing import Routing
from fennelq.worker.bus import EntriesStranded, JobDue, JobsTaken, JobStarted
from fennelq.worker.duties.listener import Listener
from fennelq.worker.duties.service import tend
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.running.aside import Aside
from fennelq.worker.running.held import Token
from fennelq.worker.threads.heartbeat import BeatResult, Heartbeat
from tests.broker.desk import Desk
from tests.kit.jobs import as_sent
from tests.kit.network import Exchange
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.worker import shop
from tests.worker.states import published

MAIL, OTHER = "mail", "other"
FOR_EVER = 600.0


class Jobs:
    """Notes which jobs run, in which order, and holds those that are asked to wait."""

    def __init__(self, app: App) -> None:
        self.begun: list[str] = []
        self.may_end = asyncio.Event()

        @app.task(name="shop:note", queue=MAIL)
        async def note(name: str, wait: bool = False) -> str:
            self.begun.append(name)
            if wait:
                await self.may_end.wait()
            return name

        self.task = note

    async def send(
        self, *names: str, queue: str = MAIL, priority: Priority = "normal", wait: bool = False
    ) -> None:
        task = self.task.options(queue=queue, priority=priority)
        for name in names:
            await task.delay(name, wait)

    def has_begun(self, name: str) -> bool:
        return name in self.begun

    async def begin(self, *names: str) -> None:
        """Returns when these have begun, in whatever order, and no others."""
        await aeventually(lambda: len(self.begun) >= len(names))
        assert Counter(self.begun) == Counter(names)


class Reader:
    """The consumer and the listener of an executor, of which nothing else is at work: no beat, no other duty."""

    def __init__(
        self, app: App, server: Server, concurrency: int = 2, lanes: Sequence[str] = tuple(LANES.values())
    ) -> None:
        self.executor = Executor(app, ExecutorConfig(concurrency=concurrency, lanes=tuple(lanes)))
        self.consumer, self.state = self.executor.consumer, self.executor.state
        self.reading: asyncio.Task[None] | None = None
        self.due: list[JobDue] = []
        self.state.bus.subscribe(JobDue, self.due.append)
        self._server, self._listener = server, Listener(self.state)
        self._listening: asyncio.Task[None] | None = None

    async def read(self, queues: str = f"{MAIL},{OTHER}") -> None:
        """Begin to read these queues, in this order."""
        self.consumer.serve(Routing.parse(queues))
        self.reading = asyncio.create_task(self.consumer.run())
        self._listening = asyncio.create_task(tend(self._listener, outage=self.state.outage))

    async def idle(self) -> None:
        """Returns when it sleeps in all its queues: there is nothing to take, and the next job wakes it."""
        await aeventually(lambda: self.consumer.drained.is_set() and self._sleeps())

    def _sleeps(self) -> bool:
        aside = self.consumer._aside
        with self._server.client() as client:
            return all(
                client.sismember(sleepers(keys, lane), self.executor.name)
                for keys in self.state.queues
                if not aside.has(keys.queue)
                for lane in self._lanes
            )

    @property
    def _lanes(self) -> Sequence[str]:
        """The lanes in which it sleeps one by one; a reader of all lanes sleeps in all of them at once."""
        return self.state.lanes if len(self.state.lanes) < len(LANES) else [""]

    async def stop(self) -> None:
        if self.reading is not None:
            await self.consumer.stop(self.reading)
        if self._listening is not None:
            self._listening.cancel()
        await self.executor.workbench.settled()
        await self.executor.broker.close()


def sleepers(keys: QueueKeys, lane: str = "") -> str:
    """The set of executors that sleep in a queue: those that read all lanes, or those that read this one."""
    return f"{keys['idle']}:{lane}" if lane else keys["idle"]


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    """The queue `mail`."""
    yield from closing(Desk(server))


@pytest.fixture
def other(server: Server) -> Iterator[Desk]:
    """The queue `other`."""
    yield from closing(Desk(server, OTHER))


def closing(desk: Desk) -> Iterator[Desk]:
    yield desk
    desk.close()


@pytest.fixture
def jobs(app: App) -> Jobs:
    return Jobs(app)


@pytest.fixture(autouse=True)
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader looks at its queues once, when it starts. From then on only messages wake it."""
    monkeypatch.setattr("fennelq.worker.running.consumer.ROUND", FOR_EVER)
    monkeypatch.setattr("fennelq.worker.running.consumer.UNHEARD_ROUND", FOR_EVER)


@pytest.fixture
async def reader(app: App, server: Server) -> AsyncIterator[Reader]:
    """It has two slots."""
    reader = Reader(app, server)
    yield reader
    async with asyncio.timeout(20):
        await reader.stop()


@pytest.fixture
async def far(app: App, jobs: Jobs, server: Server, proxy: Proxy) -> AsyncIterator[Reader]:
    """One that reads through the proxy, and knows the same tasks."""
    del jobs
    async with shop.app_of(redis_url=proxy.url) as through:
        through._tasks.update(app._tasks)
        reader = Reader(through, server)
        yield reader
        proxy.up()
        async with asyncio.timeout(20):
            await reader.stop()


@pytest.fixture
def fetches(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queues that the reader asks, in order."""
    asked: list[str] = []
    run = reader.executor.broker.run

    async def noted(verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        if verb.script.name == "fetch":
            asked.append(str(verb.args[1]))
        return await run(verb, within)

    monkeypatch.setattr(reader.executor.broker, "run", noted)
    return asked


class Clock:
    """The clock of this process, which a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """It stands until the test moves it."""
    clock = Clock()
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: clock.now)
    return clock


@contextmanager
def full(reader: Reader) -> Generator[None]:
    """Both slots are taken: what is sent meanwhile is read at once when they are free."""
    for _ in range(2):
        reader.executor.slots.take()
    yield
    for _ in range(2):
        reader.executor.slots.give_back()


def troubles(logged: Sequence[EventDict]) -> list[Any]:
    return [line["error"] for line in logged if line["event"] == "trouble"]


# What is taken


async def test_no_more_is_taken_than_there_are_slots_for(reader: Reader, jobs: Jobs, desk: Desk) -> None:
    await jobs.send(*"abcde", wait=True)
    await reader.read()
    await jobs.begin("a", "b")
    assert (len(desk.pending()), len(desk.waiting())) == (2, 5)
    jobs.may_end.set()
    await jobs.begin(*"abcde")


async def test_jobs_begin_in_the_order_of_lanes_and_of_their_coming(
    app: App, server: Server, jobs: Jobs
) -> None:
    await jobs.send("5", "6", priority="low")
    await jobs.send("3", "4")
    await jobs.send("1", "2", priority="high")
    reader = Reader(app, server, concurrency=10)
    await reader.read()
    await jobs.begin(*"123456")
    assert jobs.begun == list("123456")
    await reader.stop()


async def test_a_later_queue_is_read_when_the_one_before_is_empty(reader: Reader, jobs: Jobs) -> None:
    await jobs.send("5", "6", queue=OTHER)
    await jobs.send(*"1234")
    await reader.read()
    await jobs.begin(*"123456")
    assert jobs.begun[:4] == list("1234")


async def test_only_the_lanes_it_was_given_are_read(app: App, server: Server, jobs: Jobs, desk: Desk) -> None:
    await jobs.send("low", priority="low")
    await jobs.send("high", priority="high")
    reader = Reader(app, server, lanes=[LANES["high"]])
    await reader.read()
    await jobs.begin("high")
    await reader.idle()
    assert len(desk.waiting(LANES["low"])) == 1
    assert desk.pending(LANES["low"]) == {}
    await reader.stop()


async def test_its_queues_are_those_it_serves(reader: Reader) -> None:
    await reader.read()
    assert [keys.queue for keys in reader.executor.state.queues] == [MAIL, OTHER]


# Nothing to take


@pytest.mark.parametrize("queue", [MAIL, OTHER])
@pytest.mark.parametrize("priority", LANES)
async def test_what_comes_while_it_sleeps_runs(
    reader: Reader, jobs: Jobs, queue: str, priority: Priority
) -> None:
    await reader.read()
    await reader.idle()
    await jobs.send("a", queue=queue, priority=priority)
    await jobs.begin("a")
    await reader.idle()
    await jobs.send("b", queue=queue, priority=priority)
    await jobs.begin("a", "b")


async def test_a_job_that_wakes_it_is_a_first_delivery(reader: Reader, jobs: Jobs, desk: Desk) -> None:
    await reader.read()
    await reader.idle()
    await jobs.send("a", wait=True)
    await jobs.begin("a")
    (entry,) = desk.pending()
    assert reader.executor.state.held.tokens() == [(MAIL, "s", entry)]
    assert desk.pending()[entry] == reader.executor.name
    jobs.may_end.set()


async def test_what_comes_while_no_slot_is_free_is_not_delivered_and_runs_later(
    reader: Reader, jobs: Jobs, desk: Desk, fetches: list[str]
) -> None:
    await reader.read()
    await reader.idle()
    for _ in range(2):
        reader.executor.slots.take()
    asked = len(fetches)
    await jobs.send("a")
    await aeventually(lambda: not desk.redis.exists(sleepers(desk.keys)))
    await reader.executor.broker.ask(verbs.server.now())
    assert (desk.pending(), len(desk.waiting()), len(fetches)) == ({}, 1, asked)
    assert reader.state.connected, "a reader without a free slot is in no trouble"
    for _ in range(2):
        reader.executor.slots.give_back()
    await jobs.begin("a")
    assert desk.stats().get("released") is None
    await reader.idle()


async def test_a_job_that_recovery_queues_again_while_it_sleeps_runs(
    reader: Reader, jobs: Jobs, desk: Desk, logged: list[EventDict]
) -> None:
    await jobs.task.delay("a", True)
    desk.take("berta")
    await reader.read()
    await reader.idle()
    assert desk.recover().requeued == 1
    await jobs.begin("a")
    (entry,) = desk.pending()
    assert reader.executor.state.held.tokens() == [(MAIL, "s", entry)]
    assert troubles(logged) == []
    jobs.may_end.set()


async def test_an_entry_that_names_no_job_is_dropped(
    reader: Reader, jobs: Jobs, desk: Desk, logged: list[EventDict]
) -> None:
    """Written by a person, or a program that is not ours."""
    await reader.read()
    await reader.idle()
    desk.stray("s", strange="entry")
    await jobs.send("a")
    await jobs.begin("a")
    assert desk.stats()["dropped"] == 1
    assert (desk.waiting("s:high"), troubles(logged)) == ([], [])


@pytest.mark.audit(unfinished=True)
async def test_a_job_that_a_newer_fennelq_has_sent_is_left_to_a_newer_worker_and_reported(
    reader: Reader, jobs: Jobs, desk: Desk, logged: list[EventDict]
) -> None:
    newer = await jobs.task.delay("a")
    desk.redis.hset(desk.keys.record(newer.id.partition(":")[2]), "v", "3")
    await jobs.send("b")
    await reader.read()
    await jobs.begin("b")
    await reader.idle()
    assert [(line["job_id"], line["queue"]) for line in logged if line["event"] == "version_unknown"] == [
        (newer.id, MAIL)
    ]


async def test_a_queue_that_turns_up_while_it_sleeps_is_read_at_once(
    reader: Reader, jobs: Jobs, logged: list[EventDict]
) -> None:
    await jobs.send("a", queue=OTHER)
    await reader.read(MAIL)
    await reader.idle()
    reader.consumer.serve(Routing.parse(f"{MAIL},{OTHER}"))
    await jobs.begin("a")
    assert troubles(logged) == []


async def test_what_comes_in_several_queues_just_before_it_sleeps_runs(
    reader: Reader, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replies that say that the queues are empty are under way when the jobs arrive."""
    found_empty, may_arrive = asyncio.Event(), asyncio.Event()
    run = reader.executor.broker.run

    async def held_up(verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        answer = await run(verb, within)
        if verb.script.name == "fetch" and OTHER in verb.args:
            found_empty.set()
            await may_arrive.wait()
        return answer

    monkeypatch.setattr(reader.executor.broker, "run", held_up)
    await reader.read()
    await found_empty.wait()
    await jobs.send("a")
    await jobs.send("b", queue=OTHER)
    may_arrive.set()
    await jobs.begin("a", "b")
    await reader.idle()


async def test_to_serve_the_same_queues_again_leaves_it_asleep(reader: Reader, fetches: list[str]) -> None:
    """They are discovered again with many a beat."""
    await reader.read()
    await reader.idle()
    before = len(fetches)
    reader.consumer.serve(Routing.parse(f"{MAIL},{OTHER}"))
    await reader.consumer.look_again()
    assert sorted(fetches[before:]) == [MAIL, OTHER], "once for `look_again`, and not for `serve`"


async def test_only_the_queue_that_has_a_job_is_asked(reader: Reader, jobs: Jobs, fetches: list[str]) -> None:
    await reader.read()
    await reader.idle()
    before = len(fetches)
    await jobs.send("a", queue=OTHER)
    await jobs.begin("a")
    await reader.idle()
    assert fetches[before:] == [OTHER]


async def test_a_queue_that_is_no_longer_served_is_not_read(reader: Reader, jobs: Jobs, other: Desk) -> None:
    await reader.read()
    await reader.idle()
    reader.consumer.serve(Routing.parse(MAIL))
    await reader.consumer.look_again()
    await reader.idle()
    await aeventually(lambda: bells_heard(other) == [])
    await jobs.send("b", queue=OTHER)
    await jobs.send("a")
    await jobs.begin("a")
    assert len(other.waiting()) == 1


def bells_heard(desk: Desk) -> list[bytes]:
    """The bells of this queue to which executors are subscribed."""
    client = cast("Any", desk.redis)  # redis-py leaves execute_command untyped
    return cast("list[bytes]", client.execute_command("PUBSUB", "SHARDCHANNELS", desk.keys.bell("*")))


# Drained


async def test_it_is_drained_while_everything_that_was_ready_has_been_taken(
    reader: Reader, jobs: Jobs
) -> None:
    await jobs.send(*"abc", wait=True)
    await reader.read()
    await jobs.begin("a", "b")
    assert not reader.consumer.drained.is_set()
    jobs.may_end.set()
    async with asyncio.timeout(20):
        await reader.consumer.drained.wait()
    await jobs.begin(*"abc")


async def test_a_queue_that_was_found_empty_counts_as_looked_at(reader: Reader, jobs: Jobs) -> None:
    await jobs.send(*"abc", wait=True)
    await reader.read()
    await jobs.begin("a", "b")
    assert "mail" not in reader.state.looked
    jobs.may_end.set()
    await jobs.begin("a", "b", "c")
    await reader.consumer.drained.wait()
    assert "mail" in reader.state.looked


async def test_what_is_taken_ends_being_drained(reader: Reader, jobs: Jobs) -> None:
    await reader.read()
    await reader.idle()
    assert reader.consumer.drained.is_set()
    await jobs.send(*"ab", wait=True)
    await jobs.begin(*"ab")
    assert not reader.consumer.drained.is_set()
    jobs.may_end.set()


async def test_to_look_again_is_to_wait_until_what_is_ready_now_was_taken(
    reader: Reader, jobs: Jobs, desk: Desk
) -> None:
    await reader.read()
    for name in "abcdefghij":
        await jobs.send(name, queue=OTHER)
        async with asyncio.timeout(20):
            await reader.consumer.look_again()
        assert name in jobs.begun
    assert jobs.begun == list("abcdefghij")


async def test_a_queue_with_more_than_one_reply_can_carry_is_not_drained(
    app: App, server: Server, jobs: Jobs
) -> None:
    """The first eight jobs are more than a megabyte, so the ninth is left when the next queue is found empty."""
    names = [letter * 150_000 for letter in "abcdefghi"]
    await jobs.send(*names)
    reader = Reader(app, server, concurrency=20)
    looking = asyncio.create_task(reader.consumer.look_again())
    await asyncio.sleep(0)
    await reader.read()
    async with asyncio.timeout(20):
        await looking
    assert jobs.begun == names
    await reader.stop()


class Gated:
    """Jobs that each wait at a gate, the fetches that take them, and a server whose replies are slow."""

    def __init__(self, app: App, server: Server, still: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader = Reader(app, server, concurrency=8)
        self.asked: list[int] = []
        """For how many jobs each fetch asks."""
        self.begun: list[str] = []
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._ending, self._still = "", still
        self._run = self.reader.executor.broker.run
        monkeypatch.setattr(self.reader.executor.broker, "run", self._noted)

        @app.task(name="shop:gated", queue=MAIL)
        async def gated(gate: str) -> None:
            self.begun.append(gate)
            await self._gates[gate].wait()

        self._task = gated

    async def send(self, gates: str) -> None:
        await self._task.map(list(gates))

    async def begin(self, gates: str) -> None:
        await aeventually(lambda: sorted(self.begun) == sorted(gates))

    def open(self, gates: str) -> None:
        for gate in gates:
            self._gates[gate].set()

    def end_during_the_next_fetch(self, gate: str) -> None:
        """The jobs at this gate end while the next fetch is under way. Its reply comes a second later."""
        self._ending = gate

    async def _noted(self, verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        if verb.script.name != "fetch":
            return await self._run(verb, within)
        self.asked.append(int(verb.args[3]))
        reply = await self._run(verb, within)
        if self._ending:
            self.open(self._ending)
            self._ending = ""
            await aeventually(lambda: self.reader.executor.slots.taken == 0)
            self._still.now += 1.0
        return reply


@pytest.fixture
async def gated(
    app: App, server: Server, still: Clock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Gated]:
    """With a reader that has eight slots."""
    gated = Gated(app, server, still, monkeypatch)
    yield gated
    gated.open("abcdefg")
    async with asyncio.timeout(20):
        await gated.reader.idle()
        await gated.reader.stop()


async def test_while_the_server_is_slower_than_the_jobs_all_slots_are_filled_at_once(gated: Gated) -> None:
    await gated.send("aaaaaaab" + "cccc" + "dddd" + "e" * 20)
    await gated.reader.read(MAIL)
    await gated.begin("aaaaaaab")
    gated.end_during_the_next_fetch("b")
    gated.open("a")
    await gated.begin("aaaaaaab" + "cccc" + "dddd")
    gated.open("cd")
    await gated.begin("aaaaaaab" + "cccc" + "dddd" + "e" * 8)
    # Half of its slots, until it has waited for a reply with nothing to do.
    assert gated.asked == [8, 4, 4, 8]


async def test_only_waiting_for_a_queue_that_is_known_to_have_jobs_counts_as_a_slow_server(
    gated: Gated,
) -> None:
    await gated.send("a")
    await gated.reader.read(MAIL)
    await gated.begin("a")
    await gated.reader.idle()
    gated.end_during_the_next_fetch("a")
    await gated.send("b")
    await gated.begin("ab")
    await gated.reader.idle()
    gated.asked.clear()
    await gated.send("ccccccc" + "d" * 20)
    await gated.begin("ab" + "ccccccc")
    gated.open("c")
    await aeventually(lambda: len(gated.asked) > 1)
    assert gated.asked[:2] == [7, 4]


# Due


async def test_the_promoter_learns_when_the_next_job_is_due(reader: Reader, jobs: Jobs) -> None:
    await jobs.task.options(delay=20).delay("later")
    await reader.read()
    await reader.idle()
    assert {job.queue for job in reader.due} == {MAIL}
    assert all(10 < job.seconds <= 20 and not job.announced for job in reader.due)


async def test_the_promoter_learns_that_a_job_is_due_already(reader: Reader, jobs: Jobs, desk: Desk) -> None:
    result = await jobs.task.options(delay=20).delay("due")
    desk.redis.zadd(desk.keys["sched"], {result.id.partition(":")[2]: 1})
    await reader.read(MAIL)
    await reader.idle()
    assert set(reader.due) == {JobDue(0.0, MAIL)}


async def test_without_a_scheduled_job_the_promoter_is_not_woken(reader: Reader) -> None:
    await reader.read()
    await reader.idle()
    assert reader.due == []


# Stranded


def stranded(desk: Desk, reader: Reader) -> list[Token]:
    """Deliveries whose reply never reached the reader."""
    return [(desk.keys.queue, d.lane, d.entry) for d in desk.take(reader.executor.name)]


async def test_what_lost_replies_have_stranded_is_handed_back_and_runs(
    reader: Reader, jobs: Jobs, desk: Desk, other: Desk
) -> None:
    lost: list[Token] = []
    for queue, names in ((desk, "ab"), (other, "cd")):
        await jobs.send(*names, queue=queue.keys.queue)
        lost += stranded(queue, reader)
    await reader.read()
    await reader.idle()
    reader.state.bus.publish(EntriesStranded(lost))
    await jobs.begin(*"abcd")
    assert (desk.stats()["released"], other.stats()["released"]) == (2, 2)


async def test_what_was_stranded_is_handed_back_while_no_slot_is_free(
    reader: Reader, jobs: Jobs, desk: Desk
) -> None:
    """A job that is stranded again and again is suspicious: each time is counted."""
    await jobs.send("a", "b", wait=True)
    await reader.read()
    await jobs.begin("a", "b")
    running = set(desk.pending())
    result = await jobs.task.delay("c")
    reader.consumer.suspect(stranded(desk, reader))
    await aeventually(lambda: desk.pending().keys() == running)
    assert desk.record(result.id.partition(":")[2])["l"] == "1"
    jobs.may_end.set()
    await jobs.begin(*"abc")


async def test_what_is_in_hand_is_not_handed_back_with_what_was_stranded(
    reader: Reader, jobs: Jobs, desk: Desk
) -> None:
    """The reply that was under way has come meanwhile."""
    await jobs.send("a", "b", wait=True)
    await reader.read()
    await jobs.begin("a", "b")
    running = reader.executor.state.held.tokens()
    await jobs.send("c")
    reader.consumer.suspect([*running, *stranded(desk, reader)])
    await aeventually(lambda: len(desk.pending()) == 2)
    assert desk.pending().keys() == {entry for _, _, entry in running}
    jobs.may_end.set()
    await jobs.begin(*"abc")


async def test_a_running_job_of_another_queue_is_not_taken_for_a_stranded_one_at_the_same_place(
    reader: Reader, jobs: Jobs, desk: Desk, other: Desk
) -> None:
    """Entries that two queues get within one millisecond have the same number."""
    with desk.redis.pipeline(transaction=True) as together:
        for queue, name in ((desk, "a"), (other, "b")):
            job = jobs.task.options(queue=queue.keys.queue).job(name, True)
            cast("Any", together).execute_command(*verbs.jobs.enqueue(queue.keys, [as_sent(job)]).by_source())
        together.execute()
    lost = stranded(desk, reader)
    await reader.read()
    await jobs.begin("b")
    ((_, _, running),) = reader.executor.state.held.tokens()
    assert lost == [(MAIL, "s", running)]
    with full(reader):
        await jobs.send("c", queue=OTHER)
        lost += stranded(other, reader)
        reader.consumer.suspect(lost)
        await aeventually(lambda: not desk.pending() and list(other.pending()) == [running])
    jobs.may_end.set()
    await jobs.begin("a", "b", "c")
    assert (desk.stats()["released"], other.stats()["released"]) == (1, 1)


async def test_what_was_handed_back_is_not_handed_back_again(reader: Reader, jobs: Jobs, desk: Desk) -> None:
    await jobs.send("a")
    lost = stranded(desk, reader)
    await reader.read()
    await reader.idle()
    reader.consumer.suspect(lost)
    await jobs.begin("a")
    await reader.idle()
    await jobs.send("b")
    await jobs.begin("a", "b")
    await reader.idle()
    assert desk.stats()["released"] == 1


async def test_when_nothing_is_stranded_nothing_is_woken(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reader.read()
    await reader.idle()
    woken: list[bool] = []
    with monkeypatch.context() as patched:
        patched.setattr(reader.executor.slots, "notify", lambda: woken.append(True))
        reader.consumer.suspect([])
    assert woken == []


async def test_what_a_cut_connection_has_stranded_runs_as_soon_as_there_is_a_new_one(
    far: Reader, jobs: Jobs, desk: Desk, proxy: Proxy
) -> None:
    """Its lease has not run for half its time, so no beat of the heartbeat would find it yet."""
    await far.read()
    await far.idle()
    proxy.drop_reply(choice=lambda exchange: b"shop:note" in exchange.reply, cut=True)
    with full(far):
        await jobs.send("a", "b", wait=True)
    await aeventually(lambda: sorted(jobs.begun) == ["a", "b"], within=2)
    assert desk.stats()["released"] == 2
    assert len(desk.pending()) == 2
    assert MAIL in far.state.unsure, "the heartbeat looks there as well"
    jobs.may_end.set()


async def test_what_is_in_hand_is_kept_when_a_cut_connection_has_stranded_more(
    far: Reader, jobs: Jobs, desk: Desk, proxy: Proxy
) -> None:
    await far.read()
    await far.idle()
    await jobs.send("a", wait=True)
    await jobs.begin("a")
    running = far.state.held.tokens()
    proxy.drop_reply(choice=lambda exchange: b"shop:note" in exchange.reply, cut=True)
    await jobs.send("b", wait=True)
    await jobs.begin("a", "b")
    assert desk.stats()["released"] == 1
    assert set(running) < set(far.state.held.tokens())
    jobs.may_end.set()


async def test_the_look_for_stranded_jobs_is_repeated_until_it_is_answered(
    far: Reader, jobs: Jobs, desk: Desk, proxy: Proxy
) -> None:
    await far.read()
    await far.idle()
    look = str(verbs.executors.beat(desk.keys, "", 0, ()).by_sha()[1]).encode()
    lost: list[bytes] = []

    def choose(exchange: Exchange) -> bool:
        """The reply with the job, and those to the first two looks."""
        if b"shop:note" not in exchange.reply and look not in exchange.words:
            return False
        lost.append(exchange.reply)
        return len(lost) <= 3

    proxy.drop_replies(choose, cut=True)
    await jobs.send("a")
    await jobs.begin("a")
    assert len(lost) >= 4
    assert desk.stats()["released"] == 1


async def test_a_run_that_never_began_gives_its_slot_back_and_its_job_runs(
    reader: Reader, jobs: Jobs, desk: Desk
) -> None:
    cancel_before_the_first_step(reader)
    await jobs.send("a")
    await reader.read()
    await aeventually(lambda: reader.state.held.never_began())
    assert reader.executor.slots.taken == 1
    reader.consumer.suspect(beaten(reader, desk).stranded)
    await jobs.begin("a")
    await aeventually(lambda: reader.executor.slots.taken == 0)
    assert beaten(reader, desk).stranded == []
    assert desk.stats()["released"] == 1


async def test_a_run_that_never_began_gives_its_slot_back_although_its_job_was_recovered_already(
    reader: Reader, jobs: Jobs, desk: Desk
) -> None:
    cancel_before_the_first_step(reader)
    await jobs.send("a")
    await reader.read()
    await aeventually(lambda: reader.state.held.never_began())
    await reader.idle()
    assert desk.recover().requeued == 1
    await reader.consumer.look_again()
    await jobs.begin("a")
    await aeventually(lambda: reader.executor.slots.taken == 1)
    reader.consumer.suspect(beaten(reader, desk).stranded)
    await aeventually(lambda: reader.executor.slots.taken == 0)
    assert reader.state.held.by_token == {}
    assert desk.stats().get("released") is None


def cancel_before_the_first_step(reader: Reader) -> None:
    """Other code cancels the first run, and no other."""
    runs: list[JobStarted] = []

    def cancel(started: JobStarted) -> None:
        runs.append(started)
        if len(runs) == 1:
            (task,) = reader.state.held.tasks()
            task.cancel()

    reader.state.bus.subscribe(JobStarted, cancel)


def beaten(reader: Reader, desk: Desk) -> BeatResult:
    """What the heartbeat finds now."""
    return Heartbeat(reader.state, desk.broker).beat()


# Stopping


async def test_what_comes_when_it_stops_is_left_for_others(reader: Reader, jobs: Jobs, desk: Desk) -> None:
    await reader.read()
    await reader.idle()
    reader.consumer.halt()
    await jobs.send("a")
    assert reader.reading is not None
    async with asyncio.timeout(20):
        await reader.consumer.stop(reader.reading)
    assert (len(desk.waiting()), desk.pending(), jobs.begun) == (1, {}, [])
    await aeventually(lambda: desk.redis.exists(sleepers(desk.keys)) == 0)


@pytest.mark.parametrize("busy", [False, True])
async def test_a_stop_ends_the_reading(reader: Reader, jobs: Jobs, desk: Desk, busy: bool) -> None:
    """Whether it sleeps, or waits for a slot."""
    await reader.read()
    await reader.idle()
    if busy:
        await jobs.send("a", "b", wait=True)
        await jobs.begin("a", "b")
    assert reader.reading is not None
    async with asyncio.timeout(20):
        await reader.consumer.stop(reader.reading)
    assert reader.reading.exception() is None
    await jobs.send("c")
    assert len(desk.waiting()) == (3 if busy else 1)
    assert len(desk.pending()) == (2 if busy else 0)
    jobs.may_end.set()


def hold_replies(reader: Reader, script: str, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Replies to this script arrive once the event is set."""
    may_arrive = asyncio.Event()
    run = reader.executor.broker.run

    async def held_up(verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        answer = await run(verb, within)
        if verb.script.name == script:
            await may_arrive.wait()
        return answer

    monkeypatch.setattr(reader.executor.broker, "run", held_up)
    return may_arrive


async def test_deliveries_that_arrive_after_the_stop_are_handed_back(
    reader: Reader, jobs: Jobs, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to a fetch is under way when the executor is asked to stop."""
    may_arrive = hold_replies(reader, "fetch", monkeypatch)
    await jobs.send("a", "b")
    await reader.read(MAIL)
    await aeventually(lambda: len(desk.pending()) == 2)
    reader.consumer.halt()
    may_arrive.set()
    assert reader.reading is not None
    async with asyncio.timeout(20):
        await reader.consumer.stop(reader.reading)
    assert (len(desk.waiting()), desk.pending(), jobs.begun) == (2, {}, [])
    starts_without_a_run = [desk.record(entry["i"]).get("b") for _, entry in desk.entries("s")]
    assert starts_without_a_run == ["1", "1"], "their expiry no longer counts"


async def test_a_stop_while_stranded_jobs_are_handed_back_ends_the_reading(
    reader: Reader, jobs: Jobs, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked to stop before it comes to wait for a slot."""
    await jobs.send("a", "b", wait=True)
    await reader.read()
    await jobs.begin("a", "b")
    await jobs.send("c")
    may_arrive = hold_replies(reader, "release", monkeypatch)
    reader.consumer.suspect(stranded(desk, reader))
    await aeventually(lambda: len(desk.pending()) == 2)
    assert reader.reading is not None
    stopping = asyncio.create_task(reader.consumer.stop(reader.reading))
    await asyncio.sleep(0)
    may_arrive.set()
    async with asyncio.timeout(20):
        await stopping
    assert jobs.begun == ["a", "b"]
    jobs.may_end.set()


# What happens to Redis


@pytest.mark.audit(skip="keys were deleted on purpose")
async def test_a_lane_that_was_deleted_is_made_anew_and_logged(
    reader: Reader, jobs: Jobs, desk: Desk, logged: list[EventDict]
) -> None:
    await reader.read()
    await reader.idle()
    for names in ("ab", "cd"):
        assert made_anew(logged) == []
        with full(reader):
            await jobs.send(names[0])
            await jobs.send(names[1], priority="low")
        await aeventually(partial(jobs.has_begun, names[0]))
        await aeventually(partial(jobs.has_begun, names[1]))
        await reader.executor.workbench.settled()
        await reader.idle()
        desk.redis.delete(desk.keys["s"], desk.keys["s:low"])
    await jobs.begin(*"abcd")
    (line,) = made_anew(logged)
    assert (line["queue"], line["lanes"], line["log_level"]) == (MAIL, 2, "warning")


@pytest.mark.audit(skip="keys were deleted on purpose")
async def test_it_is_logged_too_when_another_executor_had_made_the_lane(
    reader: Reader, jobs: Jobs, desk: Desk, logged: list[EventDict]
) -> None:
    desk.make_lanes("s")
    await reader.read()
    await jobs.send("a")
    await jobs.begin("a")
    await reader.executor.workbench.settled()
    await reader.idle()
    assert made_anew(logged) == []
    desk.redis.delete(desk.keys["s"])
    await jobs.send("b")
    await jobs.begin("a", "b")
    assert [(line["queue"], line["lanes"]) for line in made_anew(logged)] == [(MAIL, 1)]


def made_anew(logged: Sequence[EventDict]) -> list[EventDict]:
    return [line for line in logged if line["event"] == "groups_made_anew"]


@pytest.mark.audit(skip="keys were deleted on purpose")
async def test_a_lane_that_is_missing_when_it_fetches_is_made_anew(
    reader: Reader, jobs: Jobs, desk: Desk
) -> None:
    await jobs.send("a", "b", wait=True)
    await reader.read()
    await jobs.begin("a", "b")
    desk.redis.delete(desk.keys["s"])
    await jobs.send("c")
    jobs.may_end.set()
    await jobs.begin("a", "b", "c")


@pytest.mark.audit(skip="keys were deleted on purpose")
async def test_a_missing_lane_is_made_anew_although_another_queue_has_a_backlog(
    reader: Reader, jobs: Jobs, desk: Desk
) -> None:
    backlog = [str(n) for n in range(30)]
    await jobs.send("a", "b", queue=OTHER, wait=True)
    await jobs.send(*backlog, queue=OTHER)
    await reader.read()
    await jobs.begin("a", "b")
    desk.redis.delete(desk.keys["s"])
    await jobs.send("c")
    jobs.may_end.set()
    await jobs.begin("a", "b", "c", *backlog)
    assert jobs.begun.index("c") < len(backlog)


async def test_a_lane_is_made_by_its_first_job_and_its_group_by_the_first_fetch(
    reader: Reader, jobs: Jobs, desk: Desk
) -> None:
    await reader.read()
    await reader.idle()
    assert desk.redis.exists(*(desk.keys[lane] for lane in LANES.values())) == 0
    await jobs.send(*"abcdef")
    await jobs.begin(*"abcdef")
    await reader.idle()
    assert desk.redis.exists(desk.keys["s:high"], desk.keys["s:low"]) == 0
    assert desk.consumers() == {reader.executor.name}


async def test_trouble_ends_no_reading_and_is_logged_once(
    far: Reader, jobs: Jobs, proxy: Proxy, logged: list[EventDict]
) -> None:
    assert not far.executor.state.connected
    await far.read()
    await far.idle()
    assert far.executor.state.connected
    proxy.refuse()
    looking = asyncio.create_task(far.consumer.look_again())
    await aeventually(lambda: not far.executor.state.connected)
    await aeventually(lambda: logged)
    assert [(line["event"], line["problem"]) for line in logged] == [
        (
            "redis_trouble",
            f"Redis at {proxy.url} cannot be reached: connection refused. "
            "Is it running? Start it, or correct redis_url (FENNELQ_REDIS_URL).",
        )
    ]
    await jobs.send("a")
    proxy.up()
    await jobs.begin("a")
    await looking
    assert far.executor.state.connected
    about_redis = ["redis_trouble", "redis_is_back"]
    await aeventually(
        lambda: [line["event"] for line in logged if line["event"].startswith("redis_")] == about_redis
    )


async def test_a_reader_in_trouble_pauses_between_two_attempts(
    far: Reader, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await far.read()
    await far.idle()
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("fennelq.worker.running.consumer.asyncio.sleep", noted)
    proxy.refuse()
    looking = asyncio.create_task(far.consumer.look_again())
    await aeventually(lambda: len([seconds for seconds in pauses if 0.1 <= seconds <= 1.0]) >= 3)
    proxy.up()
    await looking


# A queue that cannot be read


class Refusals:
    """Errors with which the calls of a reader fail, by script and queue."""

    def __init__(self, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: dict[tuple[str, str], Exception] = {}
        self.calls: list[tuple[str, str]] = []
        self._run = reader.executor.broker.run
        monkeypatch.setattr(reader.executor.broker, "run", self.run)

    async def run(self, verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        prefix = str(verb.args[0])
        queue = next(name for name in (MAIL, OTHER, "third") if queue_keys("shop", name).prefix == prefix)
        call = verb.script.name, queue
        self.calls.append(call)
        if (error := self.errors.get(call)) is not None:
            raise error
        return await self._run(verb, within)


@pytest.fixture
def refusals(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> Refusals:
    return Refusals(reader, monkeypatch)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch, refusals: Refusals) -> list[tuple[float, float]]:
    """The bounds of each pause of a reader in trouble, which ends at once. It is among the calls as well."""
    found: list[tuple[float, float]] = []
    uniform = random.uniform

    def chosen(least: float, most: float) -> float:
        if least != most / 2:  # of a duty
            return uniform(least, most)
        found.append((least, most))
        refusals.calls.append(PAUSE)
        return 0.0

    monkeypatch.setattr("fennelq.worker.running.consumer.random.uniform", chosen)
    return found


def of_queues(logged: Sequence[EventDict]) -> list[str | None]:
    """The queues that are complained about."""
    return [line.get("queue") for line in logged if line["event"] == "trouble"]


PAUSE = ("pause", "")
WRONG_TYPE = ReplyError("WRONGTYPE it is not a stream")


async def test_a_queue_that_cannot_be_read_is_left_alone_for_a_while_and_stops_no_other(
    reader: Reader, jobs: Jobs, refusals: Refusals, still: Clock, logged: list[EventDict]
) -> None:
    refusals.errors["fetch", MAIL] = WRONG_TYPE
    await jobs.send("a")
    await reader.read()
    await reader.idle()
    for name in "bc":
        await jobs.send(name, queue=OTHER)
        await aeventually(partial(jobs.has_begun, name))
        await reader.idle()
    assert refusals.calls.count(("fetch", MAIL)) == 1
    assert reader.executor.state.connected
    (line,) = (line for line in logged if line["event"] == "trouble")
    assert line.pop("damage") == ""
    assert line == {
        "event": "trouble",
        "what": "reading",
        "error": "ReplyError: WRONGTYPE it is not a stream",
        "queue": MAIL,
        "looks_again_in": 0.5,
        "log_level": "warning",
    }
    still.now += 0.5
    await reader.consumer.look_again()
    assert [line["looks_again_in"] for line in logged if "looks_again_in" in line] == [0.5]
    assert refusals.calls.count(("fetch", MAIL)) == 2
    still.now += 0.5
    await reader.consumer.look_again()
    assert refusals.calls.count(("fetch", MAIL)) == 2, "this time it is left alone for longer"
    refusals.errors.clear()
    still.now += 0.5
    await reader.consumer.look_again()
    await jobs.begin(*"abc")
    assert refusals.calls.count(("fetch", MAIL)) > 2
    assert reader.consumer._aside.put(MAIL) == 0.5, "it remembers trouble that is over"
    reader.consumer._aside.forget(MAIL)


@pytest.mark.parametrize("error", [WRONG_TYPE, TimeoutError("gone"), ConnectionResetError("gone")])
async def test_after_a_fetch_that_failed_the_heartbeat_asks_the_queue_each_time(
    reader: Reader, jobs: Jobs, refusals: Refusals, error: Exception
) -> None:
    """It may have taken jobs before it failed."""
    await reader.read()
    await reader.idle()
    assert (reader.state.unsure, reader.state.read) == ({}, set())
    refusals.errors["fetch", MAIL] = error
    await jobs.send("a")
    await aeventually(lambda: reader.state.unsure)
    assert (set(reader.state.unsure), reader.state.read) == ({MAIL}, {MAIL})
    refusals.errors.clear()
    await jobs.begin("a")


async def test_a_queue_that_can_be_read_again_is_read_without_a_message(
    reader: Reader, jobs: Jobs, refusals: Refusals
) -> None:
    refusals.errors["fetch", MAIL] = WRONG_TYPE
    await jobs.send("a")
    await reader.read()
    await aeventually(lambda: refusals.calls.count(("fetch", MAIL)) == 1)
    refusals.errors.clear()
    await jobs.begin("a")


async def test_a_queue_that_is_left_while_it_cannot_be_read_is_not_read_again(
    reader: Reader, refusals: Refusals
) -> None:
    refusals.errors["fetch", MAIL] = WRONG_TYPE
    await reader.read("mail:1,other:1")
    await aeventually(lambda: reader.consumer._aside.has(MAIL))
    reader.consumer.serve(Routing.parse("other:1,third:1"))
    reads = refusals.calls.count(("fetch", MAIL))
    await aeventually(lambda: not reader.consumer._aside.has(MAIL))
    await reader.idle()
    reader.consumer._look_at([MAIL])  # when the time is over
    await reader.consumer.look_again()
    assert refusals.calls.count(("fetch", MAIL)) == reads


async def test_a_queue_in_which_stranded_jobs_cannot_be_looked_for_is_read_all_the_same(
    reader: Reader, jobs: Jobs, refusals: Refusals
) -> None:
    """The heartbeat warns of it."""
    await reader.read()
    await reader.idle()
    refusals.errors = {("fetch", MAIL): ConnectionResetError("gone"), ("beat", MAIL): WRONG_TYPE}
    await jobs.send("a")
    await aeventually(lambda: ("beat", MAIL) in refusals.calls)
    del refusals.errors["fetch", MAIL]
    await jobs.begin("a")
    await reader.idle()
    looks = refusals.calls.count(("beat", MAIL))
    await jobs.send("b")
    await jobs.begin("a", "b")
    assert refusals.calls.count(("beat", MAIL)) == looks, "once after each lost reply"


async def test_what_a_fetch_has_taken_is_published_with_the_servers_time(
    reader: Reader, jobs: Jobs, desk: Desk
) -> None:
    taken = published(reader.executor.state, JobsTaken)
    await jobs.send("a", "b")
    await reader.read()
    await jobs.begin("a", "b")
    (fact,) = taken
    assert (fact.queue, len(fact.deliveries)) == (MAIL, 2)
    assert abs(fact.now_ms - desk.now()) < 60_000


@pytest.mark.parametrize("call", ["fetch", "release"])
async def test_trouble_with_redis_itself_is_not_taken_for_that_of_a_queue(
    reader: Reader, jobs: Jobs, desk: Desk, refusals: Refusals, logged: list[EventDict], call: str
) -> None:
    if call == "fetch":
        await reader.read()
        await reader.idle()
        refusals.errors[call, MAIL] = TimeoutError("gone")
        await jobs.send("a")
    else:
        await jobs.send("a")
        lost = stranded(desk, reader)
        await reader.read()
        await reader.idle()
        refusals.errors[call, MAIL] = TimeoutError("gone")
        reader.consumer.suspect(lost)
    await aeventually(lambda: not reader.executor.state.connected)
    await aeventually(lambda: any(line["event"] == "redis_trouble" for line in logged))
    assert not reader.consumer._aside.has(MAIL)
    assert troubles(logged) == [], "it would name the queue"
    refusals.errors.clear()
    await aeventually(lambda: reader.executor.state.connected)
    reader.consumer.suspect((MAIL, "s", entry) for entry in desk.pending())  # as the next beat does
    await jobs.begin("a")


@pytest.mark.parametrize("queue", [MAIL, OTHER])
async def test_trouble_with_redis_itself_at_the_first_fetch_puts_no_queue_aside(
    reader: Reader, jobs: Jobs, refusals: Refusals, pauses: list[tuple[float, float]], queue: str
) -> None:
    """Both are asked at the same time."""
    refusals.errors["fetch", queue] = ConnectionResetError("gone")
    await jobs.send("a", queue=queue)
    await reader.read("mail:1,other:1")
    await aeventually(lambda: refusals.calls.count(("fetch", queue)) >= 2)
    assert sorted(refusals.calls[:2]) == [("fetch", MAIL), ("fetch", OTHER)]
    assert refusals.calls[2] == PAUSE
    assert pauses[0] == (0.025, 0.05)
    assert not reader.consumer._aside.has(queue)
    assert not reader.executor.state.connected
    refusals.errors.clear()
    await jobs.begin("a")


async def test_after_an_error_no_read_begins_while_another_reply_is_under_way(
    reader: Reader,
    jobs: Jobs,
    refusals: Refusals,
    pauses: list[tuple[float, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What that reply delivers would look stranded."""
    may_answer = asyncio.Event()

    async def held_up(verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        if verb.script.name == "fetch" and OTHER in verb.args:
            await may_answer.wait()
        return await refusals.run(verb, within)

    monkeypatch.setattr(reader.executor.broker, "run", held_up)
    refusals.errors["fetch", MAIL] = ConnectionResetError("gone")
    await jobs.send("a", queue=OTHER)
    await reader.read("mail:1,other:1")
    await aeventually(lambda: refusals.calls == [("fetch", MAIL)])
    for _ in range(3):
        await reader.executor.broker.ask(verbs.server.now())
    assert (refusals.calls, pauses) == ([("fetch", MAIL)], [])
    may_answer.set()
    await jobs.begin("a")
    refusals.errors.clear()


async def test_a_queue_that_cannot_be_read_any_more_when_a_job_arrives_stops_no_other(
    reader: Reader, jobs: Jobs, refusals: Refusals, logged: list[EventDict]
) -> None:
    await reader.read()
    await reader.idle()
    refusals.errors["fetch", MAIL] = WRONG_TYPE
    await jobs.send("a")
    await aeventually(lambda: reader.consumer._aside.has(MAIL))
    await reader.idle()
    await jobs.send("b", queue=OTHER)
    await jobs.begin("b")
    assert of_queues(logged) == [MAIL]
    assert reader.executor.state.connected
    refusals.errors.clear()
    await jobs.begin("a", "b")


async def test_stranded_jobs_of_a_queue_that_cannot_be_read_wait_and_those_of_others_run(
    reader: Reader, jobs: Jobs, desk: Desk, other: Desk, refusals: Refusals, logged: list[EventDict]
) -> None:
    lost: list[Token] = []
    for queue, name in ((desk, "a"), (other, "b")):
        await jobs.send(name, queue=queue.keys.queue)
        lost += stranded(queue, reader)
    await reader.read()
    await reader.idle()
    refusals.errors["release", MAIL] = WRONG_TYPE
    reader.consumer.suspect(lost)
    await jobs.begin("b")
    await reader.idle()
    reader.consumer.suspect(lost[:1])
    await reader.consumer.look_again()
    assert sorted(call for call in refusals.calls if call[0] == "release") == [
        ("release", MAIL),
        ("release", OTHER),
    ]
    assert of_queues(logged) == [MAIL]
    refusals.errors.clear()
    reader.consumer._aside.forget(MAIL)
    reader.consumer.suspect(lost[:1])
    await jobs.begin("a", "b")
    assert [call for call in refusals.calls if call[0] == "release"][2:] == [("release", MAIL)]


async def test_when_no_queue_can_be_read_it_sleeps(
    reader: Reader, jobs: Jobs, refusals: Refusals, still: Clock, logged: list[EventDict]
) -> None:
    refusals.errors["fetch", MAIL] = WRONG_TYPE
    await jobs.send("a")
    await reader.read(MAIL)
    await aeventually(lambda: of_queues(logged) == [MAIL])
    async with asyncio.timeout(20):
        await reader.consumer.drained.wait()
        reader.executor.slots.notify()
        await reader.consumer.look_again()
        # It sleeps again. A caller that waits for its look must not wait until the queue can be read.
        await reader.consumer.look_again()
    assert refusals.calls == [("fetch", MAIL)]
    refusals.errors.clear()
    still.now += 0.5
    await reader.consumer.look_again()
    await jobs.begin("a")


async def test_the_pauses_of_a_reader_in_trouble_grow_to_a_second(
    reader: Reader, refusals: Refusals, pauses: list[tuple[float, float]]
) -> None:
    refusals.errors["fetch", MAIL] = ConnectionResetError("gone")
    await reader.read(MAIL)
    await aeventually(lambda: len(pauses) >= 7)
    most = [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert pauses[:7] == [(seconds / 2, seconds) for seconds in most]
    refusals.errors.clear()
    await reader.idle()
    pauses.clear()
    refusals.errors["fetch", MAIL] = ConnectionResetError("gone")
    looking = asyncio.create_task(reader.consumer.look_again())
    await aeventually(lambda: pauses)
    assert pauses[0] == (0.025, 0.05)
    refusals.errors.clear()
    await looking


@pytest.mark.audit(skip="keys were spoiled on purpose")
async def test_every_damaged_key_of_a_queue_is_named(
    reader: Reader, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("s", "sched"):
        desk.redis.delete(desk.keys[name])
        desk.redis.set(desk.keys[name], "by mistake")
    damage = await reader.consumer._damage(desk.keys)
    assert sorted(damage.split("; ")) == [
        f"{desk.keys['s']} is a string and should be a stream: rename or delete it",
        f"{desk.keys['sched']} is a string and should be a zset: rename or delete it",
    ]

    async def refused(*_: object) -> None:
        raise ReplyError("NOPERM type")

    monkeypatch.setattr(reader.executor.broker, "converse", refused)
    assert await reader.consumer._damage(desk.keys) == ""


def test_a_queue_is_left_alone_for_longer_and_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: now)
    aside = Aside()
    assert not aside.has(MAIL)
    for seconds in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        assert aside.put(MAIL) == seconds
        assert (aside.has(MAIL), aside.has(OTHER)) == (True, False)
        now += seconds - 0.125
        assert aside.has(MAIL)
        now += 0.125
        assert not aside.has(MAIL)
    aside.put(MAIL)
    aside.forget(MAIL)
    aside.forget(OTHER)
    assert not aside.has(MAIL)
    assert aside.put(MAIL) == 0.5
