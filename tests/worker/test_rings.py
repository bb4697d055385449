"""A message that has woken an executor is answered by a fetch, or passed on to another executor, exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from structlog.typing import EventDict

from fennelq import App
from fennelq.broker.broker import ANSWER_TIMEOUT
from fennelq.broker.keys import QueueKeys
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import Verb
from fennelq.model.routing import Routing
from fennelq.worker.bus import JobArrived
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from tests.broker.desk import Desk
from tests.kit.waiting import aeventually


class Woken:
    """The reader of an executor with two slots. A test sends the messages, and sees what the reader sends."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        self.executor = Executor(app, ExecutorConfig(concurrency=2))
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
        self._run = self.executor.broker.run
        monkeypatch.setattr(self.executor.broker, "run", self._noted)
        self.reading: asyncio.Task[None] | None = None

    async def _noted(self, verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        queue = str(verb.args[0]).removeprefix("fq:{shop/").removesuffix("}:")
        if verb.script.name == "ring":
            self.calls.append(("ring", queue, *verb.args[1:]))
            if self.refused is not None:
                raise self.refused
        else:
            self.calls.append((verb.script.name, queue))
        if verb.script.name == "fetch":
            self.fetching.set()
            await self.may_fetch.wait()
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
        async with asyncio.timeout(8):
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

    async def stop(self) -> None:
        if self.reading is not None:
            await self.consumer.stop(self.reading)
        await aeventually(lambda: self.under_way == 0)


@pytest.fixture
async def woken(app: App, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Woken]:
    monkeypatch.setattr("fennelq.worker.running.consumer.ROUND", 600.0)
    monkeypatch.setattr("fennelq.worker.running.consumer.UNHEARD_ROUND", 600.0)
    woken = Woken(app, monkeypatch)
    yield woken
    async with asyncio.timeout(10):
        await woken.stop()
        await woken.executor.broker.close()


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
    woken.consumer.halt()
    await woken.stop()
    await aeventually(lambda: woken.rings() == [("ring", "mail", "s")])
    assert woken.fetched() == []


async def test_messages_after_the_stop_are_passed_on_while_the_jobs_end(woken: Woken) -> None:
    await woken.read("mail", "other")
    await woken.stop()
    woken.ring("other")
    await aeventually(lambda: woken.rings() == [("ring", "other", "s")])


async def test_a_stop_removes_the_executor_from_those_that_sleep(
    woken: Woken, mail: QueueKeys, desk: Desk
) -> None:
    await woken.read("mail", "other")
    assert desk.redis.smembers(mail["idle"]) == {woken.state.name.encode()}
    await woken.stop()
    await aeventually(lambda: desk.redis.exists(mail["idle"]) == 0)
    assert sorted(call for call in woken.calls if call[0] == "stay_awake") == [
        ("stay_awake", "mail"),
        ("stay_awake", "other"),
    ]


async def test_a_message_about_a_queue_that_was_set_aside_is_passed_on(woken: Woken) -> None:
    """Another executor may be able to read it."""
    await woken.read("mail", "other")
    woken.consumer._aside.put("mail")
    woken.ring()
    await aeventually(lambda: woken.rings() == [("ring", "mail", "s")])
    await woken.consumer.look_again()
    assert "mail" not in woken.fetched()
    assert woken.rings() == [("ring", "mail", "s")]


async def test_a_message_about_a_queue_that_is_not_served_any_more_is_passed_on(woken: Woken) -> None:
    await woken.read("mail", "other")
    woken.consumer.serve(Routing({"other": 1}))
    woken.ring()
    await aeventually(lambda: woken.rings() == [("ring", "mail", "s")])
    await woken.consumer.look_again()
    assert "mail" not in woken.fetched()


async def test_to_leave_a_queue_removes_the_executor_from_those_that_sleep_there(
    woken: Woken, mail: QueueKeys, other: Desk, desk: Desk
) -> None:
    await woken.read("mail", "other")
    name = woken.state.name.encode()
    assert (desk.redis.smembers(mail["idle"]), other.sleepers()) == ({name}, {woken.state.name})
    woken.consumer.serve(Routing({"other": 1}))
    await aeventually(lambda: not desk.redis.exists(mail["idle"]))
    assert other.sleepers() == {woken.state.name}
    assert [call for call in woken.calls if call[0] == "stay_awake"] == [("stay_awake", "mail")]


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


async def test_the_next_executor_gets_the_message(woken: Woken, desk: Desk) -> None:
    await woken.read("mail")
    woken.occupy()
    desk.fetch("berta", sleeps=True)
    with cast("Any", desk.redis).pubsub(ignore_subscribe_messages=True) as listening:
        listening.execute_command("SSUBSCRIBE", desk.keys.bell("berta"))
        listening.parse_response(timeout=5)
        woken.ring("mail", "s:high")
        await aeventually(lambda: woken.rings())
        kind, channel, text = await asyncio.to_thread(listening.parse_response, timeout=5)
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


def ping() -> Any:
    from fennelq.broker import verbs

    return verbs.server.now()
