"""A message that has woken an executor is answered by a fetch, or passed on to another executor, exactly once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from structlog.typing import EventDict

from fennelq import App
from fennelq.broker.broker import ANSWER_TIMEOUT
from fennelq.broker.keys import LANES, QUARANTINE, QueueKeys
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import Verb
from fennelq.model.routing import Routing
from fennelq.worker.bus import JobArrived
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.running import aside
from tests.broker.desk import Desk
from tests.kit.waiting import aeventually

ALL = tuple(LANES.values())


class Woken:
    """The reader of an executor with two slots. A test sends the messages, and sees what the reader sends."""

    def __init__(
        self, app: App, monkeypatch: pytest.MonkeyPatch, lanes: Sequence[str], rate: float | None = None
    ) -> None:
        self.executor = Executor(app, ExecutorConfig(concurrency=2, lanes=tuple(lanes), rate=rate))
        self.state, self.slots, self.consumer = (
            self.executor.state,
            self.executor.slots,
            self.executor.consumer,
        )
        self.calls: list[tuple[Any, ...]] = []
        self.under_way = 0
        self.fetching, self.may_fetch = asyncio.Event(), asyncio.Event()
        self.may_fetch.set()
        self.refused: Exception | None = None
        self.allowed: set[str] = set()
        self.damaged: set[str] = set()
        self._run = self.executor.broker.run
        monkeypatch.setattr(self.executor.broker, "run", self._noted)
        self.reading: asyncio.Task[None] | None = None

    async def _noted(self, verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        queue = str(verb.args[0]).removeprefix("fq:{shop/").removesuffix("}:")
        if verb.script.name == "ring":
            self.calls.append(("ring", queue, *verb.args[1:]))
            if self.refused is not None and queue not in self.allowed:
                raise self.refused
        else:
            self.calls.append((verb.script.name, queue))
        if verb.script.name == "fetch":
            self.fetching.set()
            await self.may_fetch.wait()
            if queue in self.damaged:
                raise ReplyError("WRONGTYPE it is no stream")
        self.under_way += 1
        try:
            return await self._run(verb, within)
        finally:
            self.under_way -= 1

    async def read(self, *queues: str) -> None:
        """Read until there is nothing to do; messages arrive from then on."""
        self.consumer.serve(Routing(dict.fromkeys(queues, 1)))
        self.state.note_heard(queues)
        self.reading = asyncio.create_task(self.consumer.run())
        async with asyncio.timeout(20):
            await self.consumer.drained.wait()
        self.calls.clear()

    def ring(self, queue: str = "mail", lane: str = "s") -> None:
        self.state.bus.publish(JobArrived(queue, lane))

    def occupy(self) -> None:
        for _ in range(2):
            self.slots.take()

    def vacate(self) -> None:
        for _ in range(2):
            self.slots.give_back()

    def rings(self) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] == "ring"]

    def fetched(self) -> list[str]:
        return [call[1] for call in self.calls if call[0] == "fetch"]

    def stay_awake(self) -> list[str]:
        return sorted(call[1] for call in self.calls if call[0] == "stay_awake")

    async def stop(self) -> None:
        if self.reading is not None:
            await self.consumer.stop(self.reading)
        await aeventually(lambda: self.under_way == 0)


@pytest.fixture
def rate() -> float | None:
    """The jobs per second that the executor takes at most."""
    return None


@asynccontextmanager
async def waking(
    app: App, monkeypatch: pytest.MonkeyPatch, lanes: Sequence[str] = ALL, rate: float | None = None
) -> AsyncGenerator[Woken]:
    monkeypatch.setattr("fennelq.worker.running.consumer.ROUND", 600.0)
    monkeypatch.setattr("fennelq.worker.running.consumer.UNHEARD_ROUND", 600.0)
    woken = Woken(app, monkeypatch, lanes, rate)
    yield woken
    async with asyncio.timeout(20):
        await woken.stop()
        await woken.executor.broker.close()


@pytest.fixture
async def woken(app: App, monkeypatch: pytest.MonkeyPatch, rate: float | None) -> AsyncIterator[Woken]:
    async with waking(app, monkeypatch, rate=rate) as woken:
        yield woken


async def test_a_message_to_an_executor_with_a_free_slot_is_answered_by_a_fetch(woken: Woken) -> None:
    await woken.read("mail", "other")
    woken.ring()
    await aeventually(lambda: woken.fetched() == ["mail"])
    await woken.consumer.look_again()
    assert woken.rings() == []


async def test_a_message_to_a_full_executor_is_passed_on_once(woken: Woken) -> None:
    await woken.read("mail", "other")
    woken.occupy()
    woken.ring()
    await aeventually(lambda: woken.calls == [("ring", "mail", "s")])
    woken.slots.notify()
    await woken.state.broker.ask(ping())
    assert woken.calls == [("ring", "mail", "s")]


async def test_after_it_was_passed_on_the_queue_is_asked_as_soon_as_a_slot_is_free(woken: Woken) -> None:
    """All other executors may be full as well."""
    await woken.read("mail", "other")
    woken.occupy()
    woken.ring()
    await aeventually(lambda: woken.rings() == [("ring", "mail", "s")])
    woken.vacate()
    await aeventually(lambda: woken.fetched() == ["mail"])
    await woken.consumer.look_again()
    assert woken.rings() == [("ring", "mail", "s")]


@pytest.mark.parametrize("rate", [20.0])
async def test_a_message_to_an_executor_whose_rate_is_used_up_is_passed_on_and_the_queue_asked_later(
    woken: Woken,
) -> None:
    await woken.read("mail", "other")
    woken.slots.spend(5)
    woken.ring()
    await aeventually(lambda: woken.calls == [("ring", "mail", "s")])
    await aeventually(lambda: woken.fetched() == ["mail"])
    assert woken.rings() == [("ring", "mail", "s")]


async def test_messages_about_several_lanes_and_queues_are_passed_on_one_by_one(woken: Woken) -> None:
    await woken.read("mail", "other")
    woken.occupy()
    woken.ring("mail", "s")
    woken.ring("mail", "s:high")
    woken.ring("other", "s")
    await aeventually(lambda: len(woken.rings()) == 3)
    assert woken.rings() == [("ring", "mail", "s"), ("ring", "mail", "s:high"), ("ring", "other", "s")]


async def test_a_message_that_arrives_while_the_last_slots_are_filled_is_passed_on(woken: Woken) -> None:
    """It finds free slots, but the fetch that is under way takes them."""
    await woken.read("mail", "other")
    woken.fetching.clear()
    woken.may_fetch.clear()
    woken.ring("other")
    await woken.fetching.wait()
    woken.ring("mail")
    woken.occupy()
    assert woken.rings() == []
    woken.may_fetch.set()
    await aeventually(lambda: woken.rings() == [("ring", "mail", "s")])
    assert woken.fetched() == ["other"]
    woken.vacate()
    await aeventually(lambda: "mail" in woken.fetched())
    assert woken.rings() == [("ring", "mail", "s")]


async def test_a_message_to_an_executor_that_stops_is_passed_on_once(woken: Woken) -> None:
    await woken.read("mail", "other")
    woken.consumer.halt()
    woken.ring()
    await aeventually(lambda: woken.rings() == [("ring", "mail", "s")])
    await woken.stop()
    assert woken.rings() == [("ring", "mail", "s")]
    assert woken.fetched() == []


async def test_a_message_that_was_not_answered_before_the_stop_is_passed_on(woken: Woken) -> None:
    await woken.read("mail", "other")
    woken.ring()
    woken.ring("other")
    woken.consumer.halt()
    await woken.stop()
    await aeventually(lambda: woken.rings() == [("ring", "mail", "s"), ("ring", "other", "s")])
    assert woken.fetched() == []


async def test_messages_after_the_stop_are_passed_on_while_the_jobs_end(woken: Woken) -> None:
    await woken.read("mail", "other")
    await woken.stop()
    woken.ring("other")
    await aeventually(lambda: woken.rings() == [("ring", "other", "s")])


@pytest.mark.parametrize("page", [1, 500])
async def test_a_stop_removes_the_executor_from_those_that_sleep(
    woken: Woken, mail: QueueKeys, desk: Desk, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr("fennelq.worker.running.rings.AT_ONCE", page)
    await woken.read("mail", "other")
    assert desk.redis.smembers(mail["idle"]) == {woken.state.name.encode()}
    await woken.stop()
    await aeventually(lambda: woken.stay_awake() == ["mail", "other"])
    await aeventually(lambda: desk.redis.exists(mail["idle"]) == 0)


async def test_a_message_about_a_queue_that_was_set_aside_is_passed_on(
    woken: Woken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another executor may be able to read it."""
    monkeypatch.setattr(aside, "FIRST_ASIDE", 30.0)  # long enough for the message to arrive on a busy machine
    await woken.read("mail", "other")
    woken.damaged.add("mail")
    woken.ring()
    await aeventually(lambda: "mail" in woken.state.unsure)
    assert woken.rings() == []
    woken.ring()
    await aeventually(lambda: woken.rings() == [("ring", "mail", "s")])
    await woken.consumer.look_again()
    assert woken.rings() == [("ring", "mail", "s")]


async def test_a_message_about_a_queue_that_is_not_served_any_more_is_passed_on(woken: Woken) -> None:
    await woken.read("mail", "other")
    woken.consumer.serve(Routing({"other": 1}))
    woken.ring()
    await aeventually(lambda: woken.rings() == [("ring", "mail", "s")])
    await woken.consumer.look_again()
    assert "mail" not in woken.fetched()


async def test_to_leave_queues_removes_the_executor_from_those_that_sleep_there(
    woken: Woken, mail: QueueKeys, other: Desk, desk: Desk
) -> None:
    await woken.read("mail", "other", "third")
    name = woken.state.name.encode()
    assert (desk.redis.smembers(mail["idle"]), other.sleepers()) == ({name}, {woken.state.name})
    woken.consumer.serve(Routing({"other": 1}))
    await aeventually(lambda: not desk.redis.exists(mail["idle"]))
    assert other.sleepers() == {woken.state.name}
    await aeventually(lambda: len(woken.stay_awake()) == 2)
    assert woken.stay_awake() == ["mail", "third"]


async def test_a_message_that_waits_for_a_slot_is_passed_on_when_its_queue_is_left(woken: Woken) -> None:
    await woken.read("mail", "other")
    woken.fetching.clear()
    woken.may_fetch.clear()
    woken.ring("other")
    await woken.fetching.wait()
    woken.ring("mail")
    woken.consumer.serve(Routing({"other": 1}))
    await aeventually(lambda: woken.rings() == [("ring", "mail", "s")])
    woken.may_fetch.set()
    await woken.consumer.look_again()
    assert "mail" not in woken.fetched()


async def test_a_queue_that_is_added_is_asked_before_its_messages_arrive(woken: Woken) -> None:
    await woken.read("mail")
    woken.consumer.serve(Routing({"mail": 1, "other": 1}))
    await aeventually(lambda: woken.fetched() == ["other"])


async def test_messages_that_were_passed_on_leave_nothing_behind(woken: Woken) -> None:
    await woken.read("mail", "other")
    woken.occupy()
    for _ in range(3):
        woken.ring()
    woken.consumer.serve(Routing({"mail": 1}))
    await aeventually(lambda: len(woken.rings()) == 3 and woken.under_way == 0)
    await aeventually(lambda: kept_of_rings() == [])


def kept_of_rings() -> list[str]:
    """The tasks of `Rings` that are still in memory, whether they go on or have ended."""
    gc.collect()
    # By their types: objects of others, such as settings of Django, may fail when they are asked for their class.
    tasks: list[Any] = [one for one in gc.get_objects() if issubclass(type(one), asyncio.Task)]
    return [text for text in map(repr, tasks) if "coro=<Rings." in text]


async def test_a_queue_that_has_a_job_is_asked_before_those_that_are_only_looked_at(woken: Woken) -> None:
    await woken.read(*"abcdef")
    woken.occupy()
    looking = asyncio.create_task(woken.consumer.look_again())
    await aeventually(lambda: not woken.consumer.drained.is_set())
    woken.ring("e")
    woken.vacate()
    await looking
    assert woken.fetched() == list("eabcdf")


async def test_each_sleep_ends_with_its_timer(woken: Woken, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a reader that is woken often would be woken again, in vain, for each time."""
    timers: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def noted(delay: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
        timer = call_later(delay, callback, *args)
        if callback == woken.slots.notify:
            timers.append(timer)
        return timer

    monkeypatch.setattr(loop, "call_later", noted)
    await woken.read("mail")
    for _ in range(3):
        await woken.consumer.look_again()
    assert len(timers) >= 3
    assert [timer.cancelled() for timer in timers[:-1]] == [True] * len(timers[:-1])


async def test_without_queues_it_does_not_count_as_connected(woken: Woken) -> None:
    """It has not talked to Redis yet."""
    await woken.read()
    await woken.consumer.look_again()
    assert not woken.state.connected
    woken.consumer.serve(Routing({"mail": 1}))
    await aeventually(lambda: woken.state.connected)


@pytest.mark.parametrize(
    ("lanes", "unheard", "often"), [(ALL, [], False), (ALL, ["other"], True), ((QUARANTINE,), [], True)]
)
async def test_a_reader_that_not_every_new_job_wakes_looks_more_often(
    app: App, monkeypatch: pytest.MonkeyPatch, lanes: Sequence[str], unheard: list[str], often: bool
) -> None:
    async with waking(app, monkeypatch, lanes) as woken:
        await woken.read("mail", "other")
        monkeypatch.setattr("fennelq.worker.running.consumer.UNHEARD_ROUND", 0.0)
        woken.state.note_unheard(unheard)
        woken.slots.notify()
        await woken.state.broker.ask(ping())
        assert set(woken.fetched()) == ({"mail", "other"} if often else set())


async def test_the_next_executor_gets_the_message(woken: Woken, desk: Desk) -> None:
    await woken.read("mail")
    woken.occupy()
    desk.fetch("berta", sleeps=True)
    with cast("Any", desk.redis).pubsub(ignore_subscribe_messages=True) as listening:
        listening.execute_command("SSUBSCRIBE", desk.keys.bell("berta"))
        listening.parse_response(timeout=30)
        woken.ring("mail", "s:high")
        await aeventually(lambda: woken.rings())
        kind, channel, text = await asyncio.to_thread(listening.parse_response, timeout=30)
    assert (kind, channel, text) == (b"smessage", desk.keys.bell("berta").encode(), b"look s:high")


@pytest.mark.parametrize("error", [ReplyError("NOPERM"), ConnectionResetError("gone")])
async def test_a_message_that_cannot_be_passed_on_stops_nothing_and_is_logged_at_most_once(
    woken: Woken, error: Exception, logged: list[EventDict]
) -> None:
    """A short outage is not logged."""
    await woken.read("mail", "other")
    woken.occupy()
    woken.refused = error
    for _ in range(3):
        woken.ring()
    await aeventually(lambda: len(woken.rings()) == 3)
    woken.vacate()
    await aeventually(lambda: "mail" in woken.fetched())
    expected = ["waking others"] if isinstance(error, ReplyError) else []
    assert [line["what"] for line in logged if line["event"] == "trouble"] == expected


async def test_of_several_messages_each_that_cannot_be_passed_on_counts(
    woken: Woken, logged: list[EventDict]
) -> None:
    """The user of Redis may lack the permission for one queue only."""
    await woken.read("mail", "other")
    woken.refused, woken.allowed = ReplyError("NOPERM"), {"mail"}
    woken.ring("mail")
    woken.ring("other")
    await woken.stop()
    await aeventually(lambda: len(woken.rings()) == 2)
    await aeventually(lambda: [line["what"] for line in logged if line["event"] == "trouble"])
    assert [line["what"] for line in logged if line["event"] == "trouble"] == ["waking others"]


def ping() -> Any:
    from fennelq.broker import verbs

    return verbs.server.now()
