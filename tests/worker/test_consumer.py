"""The consumer: it takes what there are slots for, in order, strands nothing, and survives what happens to Redis."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any, cast

import pytest
from structlog.typing import EventDict

from fennelq import App
from fennelq.broker import verbs
from fennelq.broker.broker import ANSWER_TIMEOUT
from fennelq.broker.keys import LANES, queue_keys
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import Verb
from fennelq.model.job import Priority
from fennelq.model.routing import Routing
from fennelq.worker.duties.promoter import Promoter
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.running.consumer import Aside
from fennelq.worker.running.held import Token
from tests.broker.desk import Desk
from tests.kit.jobs import as_sent
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.worker import shop

MAIL, OTHER = "mail", "other"
FOR_EVER_MS = 600_000


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
    """The consumer of an executor, of which nothing else is at work: no beat, no duty.

    A blocked read would last for minutes, so what has to wake it up is seen to do so.
    """

    def __init__(self, app: App, concurrency: int = 2, lanes: Sequence[str] = tuple(LANES.values())) -> None:
        self.executor = Executor(app, ExecutorConfig(concurrency=concurrency, lanes=tuple(lanes)))
        self.consumer = self.executor.consumer
        self.consumer._block_ms = FOR_EVER_MS
        self.reading: asyncio.Task[None] | None = None

    async def read(self, queues: str = f"{MAIL},{OTHER}") -> None:
        """Begin to read these queues, in this order."""
        await self.consumer.serve(Routing.parse(queues))
        self.reading = asyncio.create_task(self.consumer.run())

    async def idle(self) -> None:
        """Returns when it is blocked, because there is nothing to take."""
        await aeventually(lambda: self.consumer._blocking and self.consumer._doorbell._id is not None)
        await aeventually(self._is_blocked)

    async def _is_blocked(self) -> bool:
        with self._server.client() as client:
            return any(
                int(c["id"]) == self.consumer._doorbell._id and "b" in c["flags"]
                for c in client.client_list()
            )

    async def stop(self) -> None:
        if self.reading is not None:
            await self.consumer.stop(self.reading)
        await self.executor.workbench.settled()
        await self.executor.broker.close()

    _server: Server


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


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the next jobs are due, as the promoter learns it, in seconds."""
    learned: list[float] = []

    def expect(_: Promoter, seconds: float) -> None:
        learned.append(seconds)

    monkeypatch.setattr(Promoter, "expect", expect)
    return learned


@pytest.fixture
async def reader(app: App, server: Server, expected: list[float]) -> AsyncIterator[Reader]:
    """It has two slots."""
    del expected
    Reader._server = server
    reader = Reader(app)
    yield reader
    async with asyncio.timeout(10):
        await reader.stop()


@pytest.fixture
async def far(app: App, jobs: Jobs, server: Server, proxy: Proxy) -> AsyncIterator[Reader]:
    """One that reads through the proxy, and knows the same tasks."""
    del jobs
    Reader._server = server
    async with shop.app_of(redis_url=proxy.url) as through:
        through._tasks.update(app._tasks)
        reader = Reader(through)
        yield reader
        proxy.up()
        async with asyncio.timeout(10):
            await reader.stop()


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
    Reader._server = server
    reader = Reader(app, concurrency=10)
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
    Reader._server = server
    reader = Reader(app, lanes=[LANES["high"]])
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
async def test_what_comes_while_it_is_blocked_runs(
    reader: Reader, jobs: Jobs, queue: str, priority: Priority
) -> None:
    await reader.read()
    await reader.idle()
    await jobs.send("a", queue=queue, priority=priority)
    await jobs.begin("a")
    await reader.idle()
    await jobs.send("b", queue=queue, priority=priority)
    await jobs.begin("a", "b")


async def test_what_a_block_brought_first_is_a_first_delivery(reader: Reader, jobs: Jobs, desk: Desk) -> None:
    await reader.read()
    await reader.idle()
    await jobs.send("a", wait=True)
    await jobs.begin("a")
    (entry,) = desk.pending()
    assert reader.executor.state.held.tokens() == [(MAIL, "s", entry)]
    assert desk.pending()[entry] == reader.executor.name
    jobs.may_end.set()


async def test_what_a_block_brought_and_there_is_no_slot_for_is_handed_back_untouched(
    reader: Reader, jobs: Jobs, desk: Desk
) -> None:
    await reader.read()
    await reader.idle()
    for _ in range(2):
        reader.executor.slots.take()
    await jobs.send("a")
    await aeventually(lambda: desk.stats().get("released") == 1)
    assert desk.pending() == {}
    assert desk.entries("s")[0][1].get("n", "1") == "1"
    for _ in range(2):
        reader.executor.slots.give_back()
    await jobs.begin("a")
    await reader.idle()


async def test_a_job_that_recovery_queues_again_while_it_is_blocked_runs(
    reader: Reader, jobs: Jobs, desk: Desk, logged: list[EventDict]
) -> None:
    result = await jobs.task.delay("a", True)
    desk.do(verbs.queues.open_queue)
    desk.take("berta")
    await reader.read()
    await reader.idle()
    desk.redelivered(result.id.partition(":")[2], 2)
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
    await aeventually(lambda: desk.stats().get("dropped") == 1)
    await jobs.send("a")
    await jobs.begin("a")
    assert (desk.waiting("s:high"), troubles(logged)) == ([], [])


@pytest.mark.audit(unfinished=True)
async def test_a_job_that_a_newer_fennelq_has_sent_is_left_to_a_newer_worker_and_reported(
    reader: Reader, jobs: Jobs, desk: Desk, logged: list[EventDict]
) -> None:
    newer = await jobs.task.delay("a")
    desk.redis.hset(desk.keys.record(newer.id.partition(":")[2]), "v", "2")
    await jobs.send("b")
    await reader.read()
    await jobs.begin("b")
    await reader.idle()
    assert [(line["job_id"], line["queue"]) for line in logged if line["event"] == "version_unknown"] == [
        (newer.id, MAIL)
    ]


async def test_a_queue_that_turns_up_while_it_is_blocked_is_read_at_once(
    reader: Reader, jobs: Jobs, logged: list[EventDict]
) -> None:
    await jobs.send("a", queue=OTHER)
    await reader.read(MAIL)
    await reader.idle()
    await reader.consumer.serve(Routing.parse(f"{MAIL},{OTHER}"))
    await jobs.begin("a")
    assert troubles(logged) == []


async def test_what_comes_in_several_queues_just_before_it_blocks_runs(
    reader: Reader, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queues were found empty; the read that is to block then comes back at once, with an entry of each lane."""
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


async def test_a_bell_that_cannot_be_rung_stops_nothing_and_is_logged(
    reader: Reader, jobs: Jobs, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user of Redis may lack the right to wake its own connections."""
    await reader.read(MAIL)
    await reader.idle()

    async def refused(*_: object) -> None:
        raise ReplyError("NOPERM client|unblock")

    with monkeypatch.context() as without_right:
        without_right.setattr(reader.executor.broker, "ask", refused)
        await reader.consumer.serve(Routing.parse(f"{MAIL},{OTHER}"))
    assert troubles(logged) == ["ReplyError: NOPERM client|unblock"]
    await jobs.send("a")
    await jobs.begin("a")
    await jobs.send("b", queue=OTHER)
    await jobs.begin("a", "b")


async def test_to_serve_the_same_queues_again_leaves_it_blocked(reader: Reader, server: Server) -> None:
    """They are discovered again with every beat."""
    await reader.read()
    await reader.idle()
    before = unblocked(server)
    await reader.consumer.serve(Routing.parse(f"{MAIL},{OTHER}"))
    assert unblocked(server) == before
    await reader.consumer.serve(Routing.parse(MAIL))
    assert unblocked(server) > before


def unblocked(server: Server) -> int:
    """How often a blocked read was woken from outside."""
    with server.client() as client:
        return int(client.info("commandstats").get("cmdstat_client|unblock", {"calls": 0})["calls"])


async def test_a_queue_that_is_no_longer_served_is_not_read(reader: Reader, jobs: Jobs, other: Desk) -> None:
    await reader.read()
    await reader.idle()
    await reader.consumer.serve(Routing.parse(MAIL))
    await reader.consumer.look_again()
    await reader.idle()
    await jobs.send("b", queue=OTHER)
    await jobs.send("a")
    await jobs.begin("a")
    assert len(other.waiting()) == 1


# Drained


async def test_it_is_drained_while_everything_that_was_ready_has_been_taken(
    reader: Reader, jobs: Jobs
) -> None:
    await jobs.send(*"abc", wait=True)
    await reader.read()
    await jobs.begin("a", "b")
    assert not reader.consumer.drained.is_set()
    jobs.may_end.set()
    async with asyncio.timeout(8):
        await reader.consumer.drained.wait()
    await jobs.begin(*"abc")


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
        async with asyncio.timeout(8):
            await reader.consumer.look_again()
        assert name in jobs.begun
    assert jobs.begun == list("abcdefghij")


async def test_a_queue_with_more_than_one_reply_can_carry_is_not_drained(
    app: App, server: Server, jobs: Jobs
) -> None:
    """The first eight jobs are more than a megabyte, so the ninth is left when the next queue is found empty."""
    names = [letter * 150_000 for letter in "abcdefghi"]
    await jobs.send(*names)
    Reader._server = server
    reader = Reader(app, concurrency=20)
    looking = asyncio.create_task(reader.consumer.look_again())
    await asyncio.sleep(0)
    await reader.read()
    async with asyncio.timeout(8):
        await looking
    assert jobs.begun == names
    await reader.stop()


# Due


async def test_the_promoter_learns_when_the_next_job_is_due(
    reader: Reader, jobs: Jobs, expected: list[float]
) -> None:
    await jobs.task.options(delay=20).delay("later")
    await reader.read(MAIL)
    await reader.idle()
    assert len(expected) == 1
    assert 10 < expected[0] <= 20


async def test_the_promoter_learns_that_a_job_is_due_already(
    reader: Reader, jobs: Jobs, expected: list[float], desk: Desk
) -> None:
    result = await jobs.task.options(delay=20).delay("due")
    desk.redis.zadd(desk.keys["sched"], {result.id.partition(":")[2]: 1})
    await reader.read(MAIL)
    await reader.idle()
    assert expected == [0.0]


async def test_without_a_scheduled_job_the_promoter_is_not_woken(
    reader: Reader, expected: list[float]
) -> None:
    await reader.read()
    await reader.idle()
    assert expected == []


# Stranded


def stranded(desk: Desk, reader: Reader) -> list[Token]:
    """Deliveries whose reply never reached the reader."""
    return [(desk.keys.queue, d.lane, d.entry) for d in desk.take(reader.executor.name)]


async def test_what_lost_replies_have_stranded_is_handed_back_and_runs(
    reader: Reader, jobs: Jobs, desk: Desk, other: Desk
) -> None:
    lost: list[Token] = []
    for queue, names in ((desk, "ab"), (other, "cd")):
        queue.do(verbs.queues.open_queue)
        await jobs.send(*names, queue=queue.keys.queue)
        lost += stranded(queue, reader)
    await reader.read()
    await reader.idle()
    reader.consumer.suspect(lost)
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
    desk.do(verbs.queues.open_queue)
    other.do(verbs.queues.open_queue)
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
    reader.consumer.suspect(lost)
    await jobs.begin("a", "b")
    assert other.stats().get("released") is None
    assert list(other.pending()) == [running]
    jobs.may_end.set()


async def test_what_was_handed_back_is_not_handed_back_again(reader: Reader, jobs: Jobs, desk: Desk) -> None:
    desk.do(verbs.queues.open_queue)
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


async def test_when_nothing_is_stranded_nothing_is_woken(reader: Reader) -> None:
    await reader.read()
    await reader.idle()
    reader.consumer.suspect([])
    assert reader.consumer._waking is None


# Stopping


async def test_what_comes_when_it_stops_is_left_for_others(reader: Reader, jobs: Jobs, desk: Desk) -> None:
    await reader.read()
    await reader.idle()
    reader.consumer.halt()
    await jobs.send("a")
    await aeventually(lambda: desk.stats().get("released") == 1)
    assert reader.reading is not None
    async with asyncio.timeout(8):
        await reader.consumer.stop(reader.reading)
    assert (len(desk.waiting()), desk.pending(), jobs.begun) == (1, {}, [])


@pytest.mark.parametrize("busy", [False, True])
async def test_a_stop_ends_the_reading(reader: Reader, jobs: Jobs, desk: Desk, busy: bool) -> None:
    """Whether it is blocked, or waits for a slot."""
    await reader.read()
    await reader.idle()
    if busy:
        await jobs.send("a", "b", wait=True)
        await jobs.begin("a", "b")
    assert reader.reading is not None
    async with asyncio.timeout(8):
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
    desk.do(verbs.queues.open_queue)
    await jobs.send("a", "b")
    await reader.read(MAIL)
    await aeventually(lambda: len(desk.pending()) == 2)
    reader.consumer.halt()
    may_arrive.set()
    assert reader.reading is not None
    async with asyncio.timeout(8):
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
    async with asyncio.timeout(8):
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
    assert logged == []
    desk.redis.delete(desk.keys["s"], desk.keys["s:low"])
    await aeventually(lambda: [line["event"] for line in logged] == ["groups_made_anew"])
    (line,) = logged
    assert (line["queue"], line["lanes"], line["log_level"]) == (MAIL, 2, "warning")
    await jobs.send("a")
    await jobs.begin("a")
    assert troubles(logged) == []


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
async def test_a_missing_lane_is_made_anew_although_another_queue_leaves_no_time_to_block(
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


async def test_a_queue_is_opened_once(reader: Reader, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    run = reader.executor.broker.run

    async def noted(verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        opened.extend(str(verb.args[0]) for _ in [verb] if verb.script.name == "open")
        return await run(verb, within)

    monkeypatch.setattr(reader.executor.broker, "run", noted)
    await jobs.send(*"abcdef")
    await reader.read()
    await jobs.begin(*"abcdef")
    await reader.idle()
    assert opened == [queue_keys("shop", name).prefix for name in (MAIL, OTHER)]


async def test_trouble_ends_no_reading_and_is_logged_once(
    far: Reader, jobs: Jobs, proxy: Proxy, logged: list[EventDict]
) -> None:
    assert not far.executor.state.connected
    await far.read()
    await far.idle()
    assert far.executor.state.connected
    proxy.refuse()
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
    await aeventually(lambda: far.executor.state.connected)
    about_redis = [line["event"] for line in logged if line["event"].startswith("redis_")]
    assert about_redis == ["redis_trouble", "redis_is_back"]


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
    await aeventually(lambda: len([seconds for seconds in pauses if 0.1 <= seconds <= 1.0]) >= 3)


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
        queue = next(name for name in (MAIL, OTHER) if queue_keys("shop", name).prefix == prefix)
        call = verb.script.name, queue
        self.calls.append(call)
        if (error := self.errors.get(call)) is not None:
            raise error
        return await self._run(verb, within)


@pytest.fixture
def refusals(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> Refusals:
    return Refusals(reader, monkeypatch)


def of_queues(logged: Sequence[EventDict]) -> list[str | None]:
    """The queues that are complained about."""
    return [line.get("queue") for line in logged if line["event"] == "trouble"]


WRONG_TYPE = ReplyError("WRONGTYPE it is no stream")


def time_is_over(reader: Reader, queue: str) -> None:
    """The queue has been left alone for as long as it was to be."""
    _, pause = reader.consumer._aside._until[queue]
    reader.consumer._aside._until[queue] = (0.0, pause)


async def test_a_queue_that_cannot_be_read_is_left_alone_for_a_while_and_stops_no_other(
    reader: Reader, jobs: Jobs, refusals: Refusals, logged: list[EventDict]
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
        "error": "ReplyError: WRONGTYPE it is no stream",
        "queue": MAIL,
        "looks_again_in": 0.5,
        "log_level": "warning",
    }
    time_is_over(reader, MAIL)
    await reader.consumer.look_again()
    assert reader.consumer._aside._until[MAIL][1] == 1.0
    assert refusals.calls.count(("fetch", MAIL)) == 2
    refusals.errors.clear()
    time_is_over(reader, MAIL)
    await reader.consumer.look_again()
    await jobs.begin(*"abc")
    assert refusals.calls.count(("open", MAIL)) == 3
    assert reader.consumer._aside.put(MAIL) == 0.5, "it remembers trouble that is over"
    reader.consumer._aside.forget(MAIL)


@pytest.mark.parametrize("call", ["fetch", "release"])
async def test_trouble_with_redis_itself_is_not_taken_for_that_of_a_queue(
    reader: Reader, jobs: Jobs, desk: Desk, refusals: Refusals, logged: list[EventDict], call: str
) -> None:
    desk.do(verbs.queues.open_queue)
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


async def test_trouble_with_redis_itself_at_the_first_fetch_puts_no_queue_aside(
    reader: Reader, jobs: Jobs, refusals: Refusals
) -> None:
    refusals.errors["fetch", MAIL] = ConnectionResetError("gone")
    await jobs.send("a")
    await reader.read()
    await aeventually(lambda: refusals.calls.count(("fetch", MAIL)) >= 2)
    assert not reader.consumer._aside.has(MAIL)
    assert not reader.executor.state.connected
    refusals.errors.clear()
    await jobs.begin("a")


async def test_what_a_block_brought_of_a_queue_that_cannot_be_read_any_more_stops_no_other(
    reader: Reader, jobs: Jobs, desk: Desk, refusals: Refusals, logged: list[EventDict]
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
    reader.consumer._aside.forget(MAIL)
    reader.consumer.suspect((MAIL, "s", entry) for entry in desk.pending())  # as the next beat does
    await jobs.begin("a", "b")


async def test_stranded_jobs_of_a_queue_that_cannot_be_read_wait_and_those_of_others_run(
    reader: Reader, jobs: Jobs, desk: Desk, other: Desk, refusals: Refusals, logged: list[EventDict]
) -> None:
    lost: list[Token] = []
    for queue, name in ((desk, "a"), (other, "b")):
        queue.do(verbs.queues.open_queue)
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
    assert [call for call in refusals.calls if call[0] == "release"] == [
        ("release", MAIL),
        ("release", OTHER),
    ]
    assert of_queues(logged) == [MAIL]
    refusals.errors.clear()
    reader.consumer._aside.forget(MAIL)
    reader.consumer.suspect(lost[:1])
    await jobs.begin("a", "b")
    assert [call for call in refusals.calls if call[0] == "release"][2:] == [("release", MAIL)]


async def test_when_no_queue_can_be_read_it_waits_without_trouble(
    reader: Reader, jobs: Jobs, refusals: Refusals, monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    refusals.errors["fetch", MAIL] = WRONG_TYPE
    await jobs.send("a")
    with monkeypatch.context() as patched:
        patched.setattr("fennelq.worker.running.consumer.asyncio.sleep", noted)
        await reader.read(MAIL)
        while len(pauses) < 3:
            await sleep(0.001)
    assert set(pauses) == {0.25}
    assert of_queues(logged) == [MAIL]
    refusals.errors.clear()
    reader.consumer._aside.forget(MAIL)
    await jobs.begin("a")


async def test_a_blocked_read_that_is_refused_is_logged_and_tried_again_after_a_pause(
    reader: Reader, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    """The fetches find nothing wrong; without a pause it would keep a core busy."""
    pauses: list[float] = []
    wait, sleep = reader.consumer._doorbell.wait, asyncio.sleep
    refused = [WRONG_TYPE] * 2

    async def refusing(*args: Any) -> Any:
        if refused:
            raise refused.pop()
        return await wait(*args)

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(reader.consumer._doorbell, "wait", refusing)
    reader.executor.slots.take()
    with monkeypatch.context() as patched:
        patched.setattr("fennelq.worker.running.consumer.asyncio.sleep", noted)
        await reader.read()
        while refused:
            await sleep(0.001)
        while len(pauses) < 2:
            await sleep(0.001)
    assert all(0.025 <= seconds <= 0.05 for seconds in pauses)
    assert troubles(logged) == ["ReplyError: WRONGTYPE it is no stream"]
    assert [line["running"] for line in logged if line["event"] == "trouble"] == [1]
    reader.executor.slots.give_back()
    await jobs.send("a")
    await jobs.begin("a")


async def test_the_pauses_of_a_reader_in_trouble_grow_to_a_second(
    reader: Reader, refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[tuple[float, float]] = []

    def chosen(least: float, most: float) -> float:
        pauses.append((least, most))
        return 0.0

    monkeypatch.setattr("fennelq.worker.running.consumer.random.uniform", chosen)
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
