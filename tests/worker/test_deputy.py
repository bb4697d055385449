"""The deputy: a thread that answers what people ask of an executor, and reports for its loop while that is blocked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import AppKeys, QueueKeys
from fennelq.model.questions import DRAIN, STACKS, Drain, Question, new_question
from fennelq.worker import stacks
from fennelq.worker.bus import DrainAsked, LoopWorksAgain, QuestionAsked
from fennelq.worker.threads import deputy
from fennelq.worker.threads.deputy import Deputy
from fennelq.worker.vitals import Blockage
from tests.features.conftest import user_who_may_not
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.worker.states import is_heard, published, state_of

KEYS = AppKeys("shop")
BLOCKED = Blockage("tasks.py:7 in f", "shop:f (mail:7)", 1.5)


class Answering:
    """The deputy of the executor `anna`, whose thread a test starts when it wants to."""

    def __init__(self, broker: Broker, url: str, mail: QueueKeys) -> None:
        self.broker = broker
        self.state = state_of(broker, mail, heartbeat_interval=0.05)
        self.state.bus.attach(asyncio.get_running_loop())
        self.blocking = BlockingBroker(address_of(url))
        self.deputy = Deputy(self.state, self.blocking)

    async def ask(self, word: str, more: str = "", *, awaited: bool = True) -> Question:
        question = new_question(word, more)
        if awaited:
            await self.broker.ask(verbs.executors.await_answer(KEYS, question.request, 60_000))
        self.state.bus.publish(QuestionAsked(question.text))
        return question

    async def answer(self, question: Question) -> Any:
        raw = await self.broker.ask(verbs.executors.answer(KEYS, question.request))
        return orjson.loads(raw) if raw else None

    async def work(self) -> None:
        await asyncio.to_thread(self.deputy.work)

    def block(self) -> None:
        self.state.vitals.note_blocked(BLOCKED, stand_in=True)

    async def facts(self) -> Any:
        known = await self.broker.ask(verbs.executors.known_executors("shop"))
        return orjson.loads(known["anna"]) if "anna" in known else None


@pytest.fixture
async def answering(broker: Broker, redis_url: str, mail: QueueKeys) -> AsyncIterator[Answering]:
    answering = Answering(broker, redis_url, mail)
    yield answering
    answering.state.vitals.note_works()
    answering.deputy.end()
    answering.blocking.close()


def clients(server: Server) -> int:
    with server.client() as client:
        return len(client.client_list())


async def test_an_answer_is_kept_for_a_minute(answering: Answering, server: Server) -> None:
    question = await answering.ask(STACKS)
    await answering.work()
    answer = await answering.answer(question)
    assert answer["stacks"]
    with server.client() as client:
        assert 50_000 < client.pttl(KEYS.answer(question.request)) <= 60_000


async def test_a_question_that_no_client_waits_for_leaves_nothing(
    answering: Answering, server: Server
) -> None:
    drained = published(answering.state, DrainAsked)
    question = await answering.ask(DRAIN, awaited=False)
    await answering.work()
    later = await answering.ask(DRAIN, Drain(replace=True, grace=2.0).more)
    await answering.work()
    await aeventually(lambda: drained)
    assert drained == [DrainAsked(Drain(replace=True, grace=2.0))]
    assert await answering.answer(question) is None
    assert (await answering.answer(later))["running"] == 0


async def test_a_question_that_arrives_three_times_is_answered_once(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []

    def noted(*asked: object) -> stacks.Stacks:
        read.append(asked)
        return stacks.Stacks([], 0)

    monkeypatch.setattr(stacks, "read", noted)
    question = await answering.ask(STACKS)
    answering.state.bus.publish(QuestionAsked(question.text))
    await answering.work()
    answering.state.bus.publish(QuestionAsked(question.text))
    await answering.work()
    assert len(read) == 1


async def test_an_executor_that_has_agreed_drains_although_the_reply_of_redis_is_lost(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deputy, "PAUSE", 0.01)
    drained = published(answering.state, DrainAsked)
    ask, lost = answering.blocking.ask, threading.Event()

    def lose_one_reply(command: Any, timeout: float = 5.0) -> Any:
        reply = ask(command, timeout)
        if not lost.is_set():
            lost.set()
            raise ConnectionResetError
        return reply

    monkeypatch.setattr(answering.blocking, "ask", lose_one_reply)
    answering.deputy.start()
    question = await answering.ask(DRAIN)
    await aeventually(lambda: answering.answer(question))
    await aeventually(lambda: drained)
    assert lost.is_set()


async def test_a_question_that_only_a_later_version_knows_gets_an_answer(answering: Answering) -> None:
    question = await answering.ask("zoom", "seconds 10")
    await answering.work()
    assert (await answering.answer(question))["unknown"] == "zoom"


async def test_of_a_flood_of_questions_the_latest_are_answered(answering: Answering) -> None:
    questions = [await answering.ask("zoom") for _ in range(200)]
    await answering.work()
    answered = [question for question in questions if await answering.answer(question)]
    assert answered == questions[-20:]


async def test_an_idle_deputy_keeps_no_connection(answering: Answering, server: Server) -> None:
    assert await answering.facts() is None  # now the test itself is connected
    before = clients(server)
    answering.deputy.start()
    question = await answering.ask(STACKS)
    await aeventually(lambda: answering.answer(question))
    await aeventually(lambda: clients(server) == before)


async def test_a_question_is_answered_when_redis_is_back(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deputy, "PAUSE", 0.01)
    failed = threading.Event()
    ask = answering.blocking.ask

    def fail_once(command: Any, timeout: float = 5.0) -> Any:
        if not failed.is_set():
            failed.set()
            raise ConnectionError("away")
        return ask(command, timeout)

    monkeypatch.setattr(answering.blocking, "ask", fail_once)
    answering.deputy.start()
    question = await answering.ask(STACKS)
    await aeventually(failed.is_set)
    # The client publishes it again.
    await aeventually(lambda: published_again(answering, question))


async def test_a_connection_that_cannot_be_closed_does_not_end_the_thread(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = answering.blocking.close

    def fail() -> None:
        close()
        raise OSError("the descriptor is gone")

    monkeypatch.setattr(answering.blocking, "close", fail)
    answering.deputy.start()
    for _ in range(2):
        question = await answering.ask(STACKS)
        await aeventually(lambda: answering.answer(question))  # noqa: B023
    monkeypatch.undo()


async def published_again(answering: Answering, question: Question) -> bool:
    answering.state.bus.publish(QuestionAsked(question.text))
    return await answering.answer(question) is not None


# While the loop is blocked


async def test_it_reports_for_a_blocked_loop_again_and_again(answering: Answering) -> None:
    again = published(answering.state, LoopWorksAgain)
    answering.state.vitals.note_facts({"host": "box", "lag": 0.0, "interval": 1.0})
    answering.deputy.start()
    answering.block()
    facts = await aeventually(answering.facts)
    assert (facts["host"], facts["blocked"]["at"]) == ("box", "tasks.py:7 in f")
    assert facts["rss"] > 1_000_000

    async def later() -> bool:
        return bool((await answering.facts())["beat_ms"] > facts["beat_ms"])

    await aeventually(later)
    assert again == []
    answering.state.vitals.note_works()
    await aeventually(lambda: again)


async def test_it_listens_for_a_blocked_loop(answering: Answering, server: Server) -> None:
    answering.deputy.start()
    answering.block()
    question = new_question(STACKS)
    await answering.broker.ask(verbs.executors.await_answer(KEYS, question.request, 60_000))
    await aeventually(lambda: is_heard(server, "anna", question.text))
    answer = await aeventually(lambda: answering.answer(question))
    assert answer["blocked"]["job"] == "shop:f (mail:7)"
    answering.state.vitals.note_works()
    await aeventually(lambda: not is_heard(server, "anna", "x"))


async def test_it_reports_although_it_may_not_listen(
    server: Server, broker: Broker, mail: QueueKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deputy, "PAUSE", 0.05)
    with user_who_may_not(server, "-ssubscribe") as url:
        answering = Answering(broker, url, mail)
        answering.state.vitals.note_facts({"host": "box"})
        answering.deputy.start()
        answering.block()
        facts = await aeventually(answering.facts)

        async def later() -> bool:
            return bool((await answering.facts())["beat_ms"] > facts["beat_ms"])

        await aeventually(later)
        answering.state.vitals.note_works()
        answering.deputy.end()
        answering.blocking.close()


async def test_an_ended_deputy_ends_its_thread(answering: Answering) -> None:
    before = set(threading.enumerate())
    answering.deputy.start()
    (thread,) = set(threading.enumerate()) - before
    answering.block()
    answering.deputy.end()
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()
