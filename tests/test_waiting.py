"""Waiting for the ends of jobs: each waiter learns the end of its own job, however it comes about."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar, cast

import pytest

from fennelq.broker import verbs
from fennelq.broker.broker import ANSWER_TIMEOUT, Broker
from fennelq.broker.connection import address_of
from fennelq.broker.inbox import REFUSED_FOR, process_name
from fennelq.broker.keys import channel_name
from fennelq.broker.link import Link, LinkDown, OnMessage
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import Command, Verb, Word, as_is
from fennelq.broker.verbs.runs import Report
from fennelq.errors import BrokerUnavailable, ResultExpired
from fennelq.model.outcome import succeeded
from fennelq.model.progress import Progress, Reported, to_wire
from fennelq.waiting.looks import OF_PROGRESS, Ended, Look, watched
from fennelq.waiting.waiting import RECHECKING, SUBSCRIBING, Waiting, report_refusal
from tests.broker.desk import LIFETIMES, Desk, a_job
from tests.kit.namespace import Namespace
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually

pytestmark = pytest.mark.audit(unfinished=True)

T = TypeVar("T")
TASK = "app:welcome"
PATIENCE = 30.0
"""More than a loaded machine needs."""
NEVER = 3600.0
CLOSED = "Redis is not available: the app was closed"


class Watching(Broker):
    """Counts the jobs of each call of `watch`, refuses as many as there are refusals, and can hold up the replies and
    the subscription."""

    def __init__(self, url: str) -> None:
        super().__init__(address_of(url))
        self.calls: list[int] = []
        self.refusals: list[Exception] = []
        self.listened = self.lost = 0
        self.deaf: Exception | None = None
        self.may_answer, self.may_listen = asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        self.may_listen.set()

    async def run(self, verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        self.calls.append(len(verb.args) - len(verb.script.args))
        if self.refusals:
            raise self.refusals.pop(0)
        answer = await super().run(verb, within)
        await self.may_answer.wait()
        return answer

    async def listen(self, words: Sequence[Word], on_message: OnMessage) -> Link:
        def hear(message: Any) -> None:
            on_message(message)
            self.lost += isinstance(message, LinkDown)

        self.listened += 1
        await self.may_listen.wait()
        if self.deaf is not None:
            raise self.deaf
        return await super().listen(words, hear)


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    """The queue `mail`, opened."""
    with Desk.opened(server) as desk:
        yield desk


@pytest.fixture
def other(server: Server) -> Iterator[Desk]:
    """The queue `other`, opened."""
    with Desk.opened(server, "other") as desk:
        yield desk


@pytest.fixture
async def broker(proxy: Proxy) -> AsyncIterator[Watching]:
    broker = Watching(proxy.url)
    yield broker
    await broker.close()


@pytest.fixture
async def waiting(broker: Watching, recheck: pytest.MonkeyPatch) -> AsyncIterator[Waiting]:
    async with waiting_for(broker, PATIENCE) as waiting:
        yield waiting


@asynccontextmanager
async def waiting_for(broker: Broker, patience: float) -> AsyncGenerator[Waiting]:
    waiting = Waiting("shop", broker, LIFETIMES, patience=patience)
    yield waiting
    await waiting.close()


@pytest.fixture
def recheck(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No look again but what a test asks for: then a message must have brought the end."""
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", NEVER)
    return monkeypatch


@pytest.fixture
async def complaints() -> AsyncIterator[list[dict[str, Any]]]:
    """What the loop would log, such as an exception that was never retrieved."""
    caught: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: caught.append(context))
    yield caught
    loop.set_exception_handler(before)


async def soon(what: Awaitable[T]) -> T:
    """Far less than a test's own limit."""
    async with asyncio.timeout(20):
        return await what


def waits(waiting: Waiting, *jobs: str) -> list[asyncio.Task[Ended]]:
    return [asyncio.create_task(waiting.end_of(job)) for job in jobs]


async def registered(desk: Desk, *names: str) -> None:
    """Returns when the ends of these jobs will be published."""
    await aeventually(lambda: all(desk.record(name).get("W") for name in names))


def end(desk: Desk, *names: str) -> None:
    """These jobs, which are in our hands, succeed with their names."""
    for name in names:
        (delivery,) = [d for d in held[id(desk)] if d.key == name]
        assert desk.finish([delivery], succeeded(f'"{name}"'.encode(), 60_000)) == [1]


held: dict[int, list[Any]] = {}


def executing(desk: Desk, *names: str) -> None:
    for start in range(0, len(names), 100):
        desk.enqueue(*(a_job(name) for name in names[start : start + 100]))
    held[id(desk)] = desk.take(free=1000)


def ended(name: str) -> Ended:
    return Ended(TASK, f'{{"ok":"{name}"}}'.encode())


# Following


async def reports(waiting: Waiting, job_id: str) -> list[Reported]:
    async with aclosing(waiting.follow(job_id)) as reported:
        return [one async for one in reported]


async def test_a_reader_of_a_job_that_reports_nothing_gets_nothing(waiting: Waiting, desk: Desk) -> None:
    executing(desk, "a")
    reader = asyncio.create_task(reports(waiting, "mail:a"))
    await registered(desk, "a")
    assert waiting.followed == 1
    end(desk, "a")
    assert await soon(reader) == []
    assert waiting.followed == 0


def publish_progress(desk: Desk, name: str, *numbers: int) -> None:
    """Reports of a run, by their numbers; 0 is one that cannot be read. They reach a process together."""
    (channel,) = desk.redis.pubsub_channels()
    topic = f"{OF_PROGRESS}mail:{name}\n".encode()
    each = [topic + (to_wire(1, number, Progress(number)) if number else b"what?") for number in numbers]
    script = "for i = 2, #ARGV do redis.call('PUBLISH', ARGV[1], ARGV[i]) end"
    desk.redis.eval(script, 0, channel, *each)


async def test_every_reader_of_a_job_gets_its_reports(waiting: Waiting, desk: Desk) -> None:
    executing(desk, "a")
    readers = [asyncio.create_task(reports(waiting, "mail:a")) for _ in range(3)]
    await registered(desk, "a")
    publish_progress(desk, "a", 1)
    end(desk, "a")
    assert [await soon(reader) for reader in readers] == [[Reported((1, 1), Progress(1))]] * 3


async def test_an_older_report_that_arrives_later_does_not_replace_the_newer_one(
    waiting: Waiting, desk: Desk
) -> None:
    executing(desk, "a")
    reader = asyncio.create_task(reports(waiting, "mail:a"))
    await registered(desk, "a")
    publish_progress(desk, "a", 2, 3, 1)
    end(desk, "a")
    assert await soon(reader) == [Reported((1, 3), Progress(3))]


async def test_a_report_that_cannot_be_read_takes_away_none_that_was_not_read_yet(
    waiting: Waiting, desk: Desk
) -> None:
    executing(desk, "a")
    reader = asyncio.create_task(reports(waiting, "mail:a"))
    await registered(desk, "a")
    publish_progress(desk, "a", 2, 0)
    end(desk, "a")
    assert await soon(reader) == [Reported((1, 2), Progress(2))]


async def test_a_reader_that_breaks_off_logs_no_error(
    waiting: Waiting, desk: Desk, complaints: list[dict[str, Any]]
) -> None:
    """Neither when the job goes on, nor when its reader misses that waiting has failed."""
    executing(desk, "a")
    leaving, late = waiting.follow("mail:a"), waiting.follow("mail:a")
    first = [asyncio.ensure_future(anext(reader)) for reader in (leaving, late)]
    await registered(desk, "a")
    publish_progress(desk, "a", 1)
    await soon(asyncio.gather(*first))
    await leaving.aclose()
    await asyncio.sleep(0)  # what it waited for is cancelled
    await waiting.close()
    await asyncio.sleep(0)  # the other one's fails
    await late.aclose()
    await asyncio.sleep(0)  # its callbacks run
    del leaving, late, first
    gc.collect()
    assert complaints == []


async def test_a_reader_of_progress_learns_that_the_app_was_closed(waiting: Waiting, desk: Desk) -> None:
    """The job goes on: the reader must not take this for its end."""
    executing(desk, "a")
    reader = asyncio.create_task(reports(waiting, "mail:a"))
    await registered(desk, "a")
    await waiting.close()
    with pytest.raises(BrokerUnavailable, match="the app was closed"):
        await soon(reader)


async def test_jobs_that_are_followed_and_others_are_asked_about_together(
    waiting: Waiting, desk: Desk, broker: Watching
) -> None:
    del waiting
    executing(desk, *"abcdef")
    end(desk, "a", "b")
    for delivery in held[id(desk)][2:]:
        note = Report(delivery, to_wire(delivery.fence, 1, Progress(ord(delivery.key))))
        desk.do(verbs.runs.note, [note])
    ids = [f"mail:{name}" for name in ("c", "a", "unknown", "d", "e", "b", "f")]
    followed = {"mail:d", "mail:b", "mail:f"}
    expected = [
        (await broker.converse(watched("shop", "", [one], LIFETIMES, {one} & followed)))[0] for one in ids
    ]
    assert len({(end, envelope) for end, _, envelope in cast("list[Look]", expected)}) == 6
    broker.calls.clear()
    assert await broker.converse(watched("shop", "", ids, LIFETIMES, followed)) == expected
    assert broker.calls == [4, 3]


# Each its own


async def test_each_waiter_gets_the_end_of_its_own_job(waiting: Waiting, desk: Desk, other: Desk) -> None:
    executing(desk, "a", "b", "c")
    executing(other, "x", "y")
    jobs = ["mail:a", "other:x", "mail:b", "other:y", "mail:c"]
    waiters = waits(waiting, *jobs)
    await registered(desk, *"abc")
    await registered(other, *"xy")
    end(other, "y", "x")
    end(desk, "b", "c", "a")
    assert await soon(asyncio.gather(*waiters)) == [ended(job[-1]) for job in jobs]


async def test_each_waiter_that_comes_late_gets_the_end_of_its_own_job(
    waiting: Waiting, desk: Desk, other: Desk
) -> None:
    """Among them jobs that nothing is known of, which are not mixed up with the others."""
    executing(desk, "a", "b", "c")
    executing(other, "x", "y")
    end(desk, "a", "c")
    end(other, "x", "y")
    jobs = ["mail:a", "mail:unknown", "other:x", "mail:c", "other:y"]
    first, unknown, *rest = await soon(asyncio.gather(*waits(waiting, *jobs), return_exceptions=True))
    assert isinstance(unknown, ResultExpired)
    assert unknown.job_id == "mail:unknown"
    assert [first, *rest] == [ended("a"), ended("x"), ended("c"), ended("y")]


async def test_many_are_asked_about_a_hundred_at_a_time(
    waiting: Waiting, desk: Desk, broker: Watching
) -> None:
    names = [f"{n:03}" for n in range(250)]
    executing(desk, *names)
    end(desk, *names)
    waiters = waits(waiting, *(f"mail:{name}" for name in names))
    assert await soon(asyncio.gather(*waiters)) == [ended(name) for name in names]
    assert sorted(broker.calls)[-2:] == [100, 100]
    assert sum(broker.calls) == 250


async def test_all_waiters_of_one_job_get_its_end(waiting: Waiting, desk: Desk) -> None:
    executing(desk, "a")
    waiters = waits(waiting, *["mail:a"] * 3)
    await registered(desk, "a")
    waiters[0].cancel()
    await asyncio.wait(waiters[:1])
    end(desk, "a")
    assert await soon(asyncio.gather(*waiters[1:])) == [ended("a")] * 2


async def test_a_job_that_ended_without_a_value_has_an_empty_envelope(waiting: Waiting, desk: Desk) -> None:
    (delivery,) = desk.executing(a_job("a"))
    desk.finish([delivery], succeeded(b"", 60_000))
    assert await soon(waiting.end_of("mail:a")) == Ended(TASK, b"")


async def test_waiting_costs_one_subscription_however_many_wait(
    waiting: Waiting, desk: Desk, proxy: Proxy
) -> None:
    executing(desk, *"abcdef")
    before = proxy.counters.connections
    waiters = waits(waiting, *(f"mail:{name}" for name in "abc"))
    await registered(desk, *"abc")
    waiters += waits(waiting, *(f"mail:{name}" for name in "def"))
    await registered(desk, *"def")
    assert proxy.counters.connections - before == 2
    end(desk, *"abcdef")
    assert await soon(asyncio.gather(*waiters)) == [ended(name) for name in "abcdef"]


async def test_what_ended_is_forgotten(waiting: Waiting, desk: Desk) -> None:
    executing(desk, "a", "b")
    ending, staying = waits(waiting, "mail:a", "mail:b")
    await registered(desk, "a", "b")
    end(desk, "a")
    await soon(ending)
    assert waiting.stored == (1, 1, 0)
    staying.cancel()
    await asyncio.wait([staying])
    assert waiting.stored == (0, 0, 0)


async def test_a_waiter_that_gives_up_before_it_is_answered_leaves_nothing_behind(
    waiting: Waiting, desk: Desk, broker: Watching
) -> None:
    executing(desk, "a", "b")
    assert await soon(answered_once(waiting, desk))
    broker.may_answer.clear()
    given_up, other = waits(waiting, "mail:a", "mail:b")
    await registered(desk, "a", "b")
    given_up.cancel()
    await asyncio.wait([given_up])
    broker.may_answer.set()
    await aeventually(lambda: waiting.stored == (1, 1, 0))
    end(desk, "b", "a")
    assert await soon(other) == ended("b")


async def answered_once(waiting: Waiting, desk: Desk) -> bool:
    """Whether it is subscribed: it has been asked about a job that is unknown."""
    with pytest.raises(ResultExpired):
        await waiting.end_of("mail:unknown")
    return True


async def test_waiters_that_time_out_leave_nothing_behind(waiting: Waiting, desk: Desk) -> None:
    names = [str(n) for n in range(50)]
    executing(desk, *names)
    for name in names:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await waiting.end_of(f"mail:{name}")
    assert waiting.stored == (0, 0, 0)


async def test_a_look_answers_what_is_known_and_registers_nothing(
    waiting: Waiting, desk: Desk, broker: Watching
) -> None:
    executing(desk, "a", "b")
    end(desk, "a")
    assert await soon(waiting.look("mail:a")) == ended("a")
    assert await soon(waiting.look("mail:b")) is None
    with pytest.raises(ResultExpired):
        await soon(waiting.look("mail:unknown"))
    assert (broker.listened, waiting.stored) == (0, (0, 0, 0))
    assert not desk.record("b").get("W")


async def test_a_bad_id_among_others_has_an_error_of_its_own(broker: Watching, desk: Desk) -> None:
    executing(desk, "a", "b", "c")
    end(desk, "a", "c")
    first, bad, second, third = await soon(watch(broker, "mail:a", "no queue", "mail:b", "mail:c"))
    assert isinstance(bad, ValueError)
    assert [first, second, third] == [
        ("end", *ended("a")),
        ("wait", TASK, None),
        ("end", *ended("c")),
    ]


async def watch(broker: Broker, *jobs: str) -> Sequence[Look | Exception]:
    """The reply about each job, without registering anything."""
    return await broker.converse(watched("shop", "", jobs, LIFETIMES))


async def test_a_question_that_is_refused_as_a_whole_is_asked_one_by_one(
    desk: Desk, broker: Watching
) -> None:
    executing(desk, "a", "b", "c")
    end(desk, "a", "c")
    broker.refusals = [ReplyError("ERR something is wrong with one of these")]
    answers = await soon(watch(broker, "mail:a", "mail:b", "mail:c"))
    assert answers == [("end", *ended("a")), ("wait", TASK, None), ("end", *ended("c"))]
    assert broker.calls == [3, 1, 1, 1]


@pytest.mark.parametrize(
    ("error", "jobs"), [(ConnectionResetError("gone"), ["mail:a", "mail:b"]), (ReplyError("ERR"), ["mail:a"])]
)
async def test_a_question_for_which_asking_one_by_one_cannot_help_is_asked_once(
    broker: Watching, error: Exception, jobs: list[str]
) -> None:
    broker.refusals = [error]
    assert await soon(watch(broker, *jobs)) == [error] * len(jobs)
    assert broker.calls == [len(jobs)]


# Overtaken


async def test_an_end_that_is_published_before_the_answer_to_the_question_counts(
    waiting: Waiting, desk: Desk, broker: Watching
) -> None:
    """The reply to `watch` is held up; the message comes on another connection."""
    executing(desk, "a", "b")
    assert await soon(answered_once(waiting, desk))
    broker.may_answer.clear()
    waiters = waits(waiting, "mail:a", "mail:b")
    await registered(desk, "a", "b")
    end(desk, "a")
    await aeventually(lambda: waiting.stored == (2, 0, 1))
    broker.may_answer.set()
    assert await soon(waiters[0]) == ended("a")
    await aeventually(lambda: waiting.stored == (1, 1, 0))
    end(desk, "b")
    assert await soon(waiters[1]) == ended("b")


async def test_an_end_that_comes_when_its_waiter_gave_up_before_the_answer_is_forgotten(
    waiting: Waiting, desk: Desk, broker: Watching
) -> None:
    executing(desk, "a")
    assert await soon(answered_once(waiting, desk))
    broker.may_answer.clear()
    (waiter,) = waits(waiting, "mail:a")
    await registered(desk, "a")
    end(desk, "a")
    await aeventually(lambda: waiting.stored == (1, 0, 1))
    waiter.cancel()
    await asyncio.wait([waiter])
    assert waiting.stored == (0, 0, 0)
    broker.may_answer.set()


async def test_of_two_messages_about_a_job_the_first_counts(waiting: Waiting, desk: Desk) -> None:
    executing(desk, "a")
    (waiter,) = waits(waiting, "mail:a")
    await aeventually(lambda: waiting.stored == (1, 1, 0))
    publish(desk, b"mail:a\n1", b"mail:a\n2")
    assert await soon(waiter) == Ended(TASK, b"1")


async def test_a_message_about_a_job_that_is_not_waited_for_is_dropped(waiting: Waiting, desk: Desk) -> None:
    executing(desk, "a")
    (waiter,) = waits(waiting, "mail:a")
    await aeventually(lambda: waiting.stored == (1, 1, 0))
    publish(desk, b'mail:stranger\n{"ok":1}', b"\xff no text\n1", b"mail:a\nits own")
    assert await soon(waiter) == Ended(TASK, b"its own")
    assert waiting.stored == (0, 0, 0)


def publish(desk: Desk, *messages: bytes) -> None:
    """All at once, on the channel of this process."""
    with desk.redis.pipeline() as together:
        for message in messages:
            together.publish(channel_name("shop", process_name()), message)
        together.execute()


# Looking again


async def test_an_end_whose_message_was_lost_is_found_by_looking_again(
    waiting: Waiting, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.05)
    executing(desk, "a", "b")
    waiters = waits(waiting, "mail:a", "mail:b")
    await registered(desk, "a", "b")
    for name in "ab":
        desk.redis.hdel(desk.keys.record(name), "W")
    end(desk, "a", "b")
    assert await soon(asyncio.gather(*waiters)) == [ended("a"), ended("b")]


async def test_looking_again_begins_anew_with_the_next_waiter(
    waiting: Waiting, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends when nothing is waited for."""
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.02)
    for name in "ab":
        executing(desk, name)
        (waiter,) = waits(waiting, f"mail:{name}")
        await registered(desk, name)
        desk.redis.hdel(desk.keys.record(name), "W")
        end(desk, name)
        assert await soon(waiter) == ended(name)
        await aeventually(lambda: not tasks_of(RECHECKING))


async def test_an_answer_for_a_waiter_that_has_gone_meanwhile_is_not_kept(
    waiting: Waiting, desk: Desk, broker: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.02)
    executing(desk, "a")
    (waiter,) = waits(waiting, "mail:a")
    await aeventually(lambda: waiting.stored == (1, 1, 0))
    broker.may_answer.clear()
    looks = len(broker.calls)
    await aeventually(lambda: len(broker.calls) > looks)
    waiter.cancel()
    await asyncio.wait([waiter])
    broker.may_answer.set()
    await aeventually(lambda: not tasks_of(RECHECKING))
    assert waiting.stored == (0, 0, 0)


async def test_one_task_looks_again_for_all_after_a_pause(
    waiting: Waiting, desk: Desk, broker: Watching
) -> None:
    executing(desk, *"abc")
    waiters = waits(waiting, *(f"mail:{name}" for name in "abc"))
    await aeventually(lambda: waiting.stored == (3, 3, 0))
    for _ in range(5):
        await broker.ask(Command(["PING"], as_is))  # a look without a pause would be answered before
    assert len(tasks_of(RECHECKING)) == 1
    assert sum(broker.calls) == 3
    end(desk, *"abc")
    await soon(asyncio.gather(*waiters))


def tasks_of(*names: str) -> list[asyncio.Task[Any]]:
    """The tasks of this loop with one of these names."""
    return [task for task in asyncio.all_tasks() if task.get_name() in names]


async def test_a_passing_trouble_while_looking_again_ends_no_waiting(
    waiting: Waiting, desk: Desk, broker: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.02)
    executing(desk, "a")
    (waiter,) = waits(waiting, "mail:a")
    await registered(desk, "a")
    broker.refusals = [ConnectionResetError(), ReplyError("LOADING the data")]
    await aeventually(lambda: not broker.refusals)
    end(desk, "a")
    assert await soon(waiter) == ended("a")


@pytest.mark.audit(skip="a record was deleted on purpose")
async def test_a_waiter_whose_job_is_removed_learns_it_when_it_looks_again(
    waiting: Waiting, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.02)
    executing(desk, "a")
    (waiter,) = waits(waiting, "mail:a")
    await aeventually(lambda: waiting.stored == (1, 1, 0))
    desk.redis.delete(desk.keys.record("a"))
    with pytest.raises(ResultExpired):
        await soon(waiter)


async def test_a_trouble_that_does_not_pass_ends_the_waiting_when_it_looks_again(
    waiting: Waiting, desk: Desk, broker: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.02)
    executing(desk, "a")
    (waiter,) = waits(waiting, "mail:a")
    await registered(desk, "a")
    broker.refusals = [ReplyError("NOPERM no more")]
    with pytest.raises(BrokerUnavailable, match="NOPERM no more"):
        await soon(waiter)


# A connection that is lost


async def test_after_a_lost_subscription_it_subscribes_and_looks_at_every_job_again(
    waiting: Waiting, desk: Desk, proxy: Proxy
) -> None:
    """The job ended in between, and its message reached no subscriber."""
    executing(desk, "a", "b")
    waiters = waits(waiting, "mail:a", "mail:b")
    await registered(desk, "a", "b")
    proxy.refuse()
    end(desk, "a")
    assert not waiters[0].done()
    proxy.up()
    assert await soon(waiters[0]) == ended("a")
    await aeventually(lambda: subscribers(desk) == 1)
    end(desk, "b")
    assert await soon(waiters[1]) == ended("b")


async def test_a_subscription_that_is_lost_while_nothing_is_waited_for_is_made_anew_with_the_next(
    waiting: Waiting, desk: Desk, proxy: Proxy, broker: Watching
) -> None:
    executing(desk, "a")
    assert await soon(answered_once(waiting, desk))
    proxy.cut_all()
    await aeventually(lambda: broker.lost == 1)
    (waiter,) = waits(waiting, "mail:a")
    await registered(desk, "a")
    assert subscribers(desk) == 1
    end(desk, "a")
    assert await soon(waiter) == ended("a")


async def test_a_subscription_is_tried_until_the_server_lets_it(
    waiting: Waiting, desk: Desk, proxy: Proxy
) -> None:
    executing(desk, "a")
    (waiter,) = waits(waiting, "mail:a")
    await registered(desk, "a")
    attempts = proxy.counters.connections
    proxy.drop_replies(command="SUBSCRIBE", cut=True)
    proxy.cut_all()
    await aeventually(lambda: proxy.counters.connections >= attempts + 3)
    end(desk, "a")
    assert not waiter.done()
    proxy.up()
    assert await soon(waiter) == ended("a")
    await aeventually(lambda: subscribers(desk) == 1)


async def test_an_attempt_to_subscribe_that_is_not_answered_leaves_no_connection(
    waiting: Waiting, desk: Desk, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.05)
    executing(desk, "a")
    proxy.drop_reply(1, command="SUBSCRIBE")
    (waiter,) = waits(waiting, "mail:a")
    await registered(desk, "a")
    await aeventually(lambda: subscribers(desk) == 1)
    end(desk, "a")
    assert await soon(waiter) == ended("a")


async def test_a_subscription_that_takes_longer_than_a_caller_waits_is_not_begun_twice(
    broker: Watching, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    executing(desk, "a")
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.05)
    broker.may_listen.clear()
    async with waiting_for(broker, PATIENCE) as waiting:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting.end_of("mail:a"), 0.5)
        assert broker.listened == 1
        monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", PATIENCE)
        broker.may_listen.set()
        (waiter,) = waits(waiting, "mail:a")
        await registered(desk, "a")
        end(desk, "a")
        assert await soon(waiter) == ended("a")
        assert broker.listened == 1


async def test_nothing_is_asked_before_the_subscription_is_confirmed(
    waiting: Waiting, desk: Desk, proxy: Proxy, broker: Watching
) -> None:
    """The message could come before it is heard."""
    executing(desk, "a")
    await broker.ask(Command(["PING"], as_is))
    proxy.drop_reply(1, command="SUBSCRIBE")
    (waiter,) = waits(waiting, "mail:a")
    await aeventually(lambda: subscribers(desk) == 1)
    assert broker.calls == []
    proxy.cut_all()
    await registered(desk, "a")
    end(desk, "a")
    assert await soon(waiter) == ended("a")


async def test_a_subscription_that_is_lost_before_it_is_confirmed_is_tried_again(
    waiting: Waiting, desk: Desk, proxy: Proxy
) -> None:
    executing(desk, "a")
    proxy.drop_reply(1, command="SUBSCRIBE", cut=True)
    (waiter,) = waits(waiting, "mail:a")
    await registered(desk, "a")
    end(desk, "a")
    assert await soon(waiter) == ended("a")


async def test_a_waiter_that_gives_up_takes_the_subscription_from_no_other(
    waiting: Waiting, desk: Desk, proxy: Proxy, broker: Watching
) -> None:
    executing(desk, "a", "b")
    proxy.blackhole()
    given_up, other = waits(waiting, "mail:a", "mail:b")
    await aeventually(lambda: broker.listened == 1)
    given_up.cancel()
    await asyncio.wait([given_up])
    proxy.up()
    await registered(desk, "b")
    end(desk, "b")
    assert await soon(other) == ended("b")
    assert broker.listened == 1


async def test_attempts_to_subscribe_that_are_not_answered_do_not_add_up(
    waiting: Waiting, desk: Desk, proxy: Proxy, broker: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    executing(desk, "a")
    (waiter,) = waits(waiting, "mail:a")
    await registered(desk, "a")
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.05)
    proxy.drop_replies(command="SUBSCRIBE")
    proxy.cut_all()
    await aeventually(lambda: broker.listened >= 6)
    assert len(tasks_of(SUBSCRIBING)) == 1
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", NEVER)
    proxy.up()
    await aeventually(lambda: not tasks_of(SUBSCRIBING))
    assert subscribers(desk) == 1
    end(desk, "a")
    assert await soon(waiter) == ended("a")


async def test_jobs_are_looked_at_while_a_lost_subscription_cannot_be_made_anew(
    waiting: Waiting, desk: Desk, proxy: Proxy, broker: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.05)
    executing(desk, "a")
    (waiter,) = waits(waiting, "mail:a")
    await registered(desk, "a")
    proxy.drop_replies(command="SUBSCRIBE")
    proxy.cut_all()
    await aeventually(lambda: broker.listened >= 2)
    end(desk, "a")
    assert await soon(waiter) == ended("a")


async def test_a_subscription_that_the_server_refuses_for_good_is_not_tried_for_ever(
    waiting: Waiting, desk: Desk, proxy: Proxy, broker: Watching
) -> None:
    executing(desk, "a")
    (waiter,) = waits(waiting, "mail:a")
    await registered(desk, "a")
    broker.deaf = ReplyError("WRONGPASS the password was changed")
    proxy.cut_all()
    await aeventually(lambda: broker.listened == 2)
    await aeventually(lambda: not tasks_of(SUBSCRIBING))
    assert broker.listened == 2
    await waiting.close()
    with pytest.raises(BrokerUnavailable):
        await soon(waiter)


async def test_between_two_attempts_to_subscribe_there_is_a_pause(
    waiting: Waiting, desk: Desk, proxy: Proxy, broker: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    executing(desk, "a")
    (waiter,) = waits(waiting, "mail:a")
    await registered(desk, "a")
    pauses: list[float] = []

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr("fennelq.waiting.waiting.asyncio", Namespace(asyncio, sleep=noted))
    proxy.refuse()
    await aeventually(lambda: broker.listened >= 4)
    assert len([seconds for seconds in pauses if 0.05 <= seconds <= 0.5]) >= 2
    monkeypatch.undo()
    proxy.up()
    end(desk, "a")
    assert await soon(waiter) == ended("a")


@pytest.mark.parametrize("end", ["it fails", "it is cancelled"])
async def test_an_attempt_that_fails_or_is_cancelled_when_nothing_waits_for_it_logs_no_error(
    broker: Watching, complaints: list[dict[str, Any]], end: str
) -> None:
    waiting = Waiting("shop", broker, LIFETIMES, patience=0.05)
    broker.deaf = ConnectionRefusedError()
    broker.may_listen.clear()
    (waiter,) = waits(waiting, "mail:a")
    with pytest.raises(BrokerUnavailable):
        await soon(waiter)
    assert broker.listened == 1
    if end == "it fails":
        broker.may_listen.set()
    else:
        await waiting.close()
    await aeventually(lambda: not tasks_of(SUBSCRIBING))
    await asyncio.sleep(0)  # its callbacks run
    broker.deaf = None  # its traceback holds the attempt
    del waiter, waiting
    gc.collect()
    assert complaints == []


def subscribers(desk: Desk) -> int:
    return sum(int(client["sub"]) for client in desk.redis.client_list())


# A subscription that is refused


class Later:
    """A clock that stands still until a test moves it forward."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """The clock by which a refusal becomes old."""
    later = Later()
    monkeypatch.setattr("fennelq.waiting.waiting.clock", later)
    return later


async def test_where_the_subscription_is_refused_it_polls_and_tries_again_when_the_refusal_is_old(
    waiting: Waiting, desk: Desk, broker: Watching, later: Later
) -> None:
    executing(desk, "a", "b", "c")
    broker.deaf = ReplyError("NOPERM this user may not subscribe")
    first, second, third = waits(waiting, "mail:a", "mail:b", "mail:c")
    await registered(desk, "a", "b", "c")
    await aeventually(lambda: waiting.stored == (3, 3, 0))
    end(desk, "a", "b")
    assert [await soon(first), await soon(second)] == [ended("a"), ended("b")]
    assert (broker.listened, waiting.polling) == (1, True)
    broker.deaf = None
    later.now = REFUSED_FOR
    await aeventually(lambda: subscribers(desk) == 1)
    await aeventually(lambda: not waiting.polling)
    end(desk, "c")
    assert await soon(third) == ended("c")


async def test_a_server_that_refuses_the_subscription_is_not_asked_for_it_all_the_time(
    server: Server, desk: Desk, recheck: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, later: Later
) -> None:
    recheck.setattr("fennelq.waiting.waiting.reported", set[tuple[str, str]]())
    executing(desk, "a")
    client: Any = desk.redis
    client.execute_command("ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels")
    broker = Watching(server.url.replace("redis://", "redis://mute:pw@"))
    waiting = Waiting("shop", broker, LIFETIMES, patience=PATIENCE)
    (waiter,) = waits(waiting, "mail:a")
    await aeventually(lambda: waiting.stored == (1, 1, 0))
    for _ in range(5):
        await broker.ask(Command(["PING"], as_is))
    assert (broker.listened, waiting.polling) == (1, True)
    later.now = REFUSED_FOR - 1
    looks = len(broker.calls)
    await aeventually(lambda: len(broker.calls) >= looks + 2)
    assert broker.listened == 1
    later.now = REFUSED_FOR
    await aeventually(lambda: broker.listened == 2)
    await aeventually(lambda: not tasks_of(SUBSCRIBING))
    assert tasks_of(SUBSCRIBING) == []
    (line,) = caplog.messages
    assert "waiting for results of shop by polling" in line
    end(desk, "a")
    assert await soon(waiter) == ended("a")
    await waiting.close()
    await broker.close()
    client.execute_command("ACL", "DELUSER", "mute")


def test_a_refusal_is_logged_once_per_kind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fennelq.waiting.waiting.reported", set[tuple[str, str]]())
    for text in ("NOPERM first", "NOPERM again", "ERR other"):
        report_refusal("shop", ReplyError(text))
    refused = "waiting for results of shop by polling, which is slower: the server refused to SUBSCRIBE to"
    assert caplog.messages == [
        f"{refused} {channel_name('shop', '*')} ({text})" for text in ("NOPERM first", "ERR other")
    ]


async def test_trouble_of_every_command_is_not_taken_for_a_refused_subscription(
    waiting: Waiting, broker: Watching
) -> None:
    broker.deaf = ReplyError("WRONGPASS no such user")
    for attempt in (1, 2):
        with pytest.raises(BrokerUnavailable, match="WRONGPASS"):
            await soon(waiting.end_of("mail:a"))
        assert (broker.calls, broker.listened, waiting.polling) == ([], attempt, False)


async def test_polling_gets_slower_and_is_quick_again_for_a_new_waiter(
    waiting: Waiting, desk: Desk, broker: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    executing(desk, "a")
    pauses = asyncio.Queue[float]()
    may_go_on = asyncio.Semaphore(0)

    async def noted(seconds: float) -> None:
        pauses.put_nowait(seconds)
        await may_go_on.acquire()

    async def next_pause() -> float:
        may_go_on.release()
        return await soon(pauses.get())

    broker.deaf = ReplyError("NOPERM this user may not subscribe")
    monkeypatch.setattr("fennelq.waiting.waiting.asyncio", Namespace(asyncio, sleep=noted))
    (waiter,) = waits(waiting, "mail:a")
    assert await soon(pauses.get()) == 0.25
    assert [await next_pause() for _ in range(4)] == [0.5, 1.0, 1.0, 1.0]
    with pytest.raises(ResultExpired):
        await soon(waiting.end_of("mail:unknown"))
    assert await next_pause() == 0.25
    waiter.cancel()


async def test_while_messages_arrive_it_looks_again_now_and_then(
    waiting: Waiting, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    executing(desk, "a")
    pauses: list[float] = []

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.Event().wait()

    monkeypatch.setattr("fennelq.waiting.waiting.asyncio", Namespace(asyncio, sleep=noted))
    (waiter,) = waits(waiting, "mail:a")
    await aeventually(lambda: pauses)
    assert pauses == [NEVER]
    end(desk, "a")
    assert await soon(waiter) == ended("a")


# Patience and the end


async def test_a_question_that_meets_a_passing_trouble_is_asked_again(
    waiting: Waiting, desk: Desk, broker: Watching
) -> None:
    executing(desk, "a")
    end(desk, "a")
    broker.refusals = [ConnectionResetError(), ReplyError("LOADING the data")]
    assert await soon(waiting.end_of("mail:a")) == ended("a")
    assert broker.calls == [1, 1, 1]


async def test_a_question_is_asked_no_longer_than_the_patience_lasts(
    broker: Watching,
) -> None:
    broker.refusals = [ConnectionResetError()] * 1000
    async with waiting_for(broker, patience=0.4) as waiting:
        with pytest.raises(BrokerUnavailable, match="cannot be reached: the connection was closed"):
            await soon(waiting.end_of("mail:a"))
        assert 2 <= len(broker.calls) < 100
        assert waiting.stored == (0, 0, 0)


async def test_a_subscription_that_is_not_answered_is_waited_for_no_longer_than_the_patience_lasts(
    broker: Watching, proxy: Proxy, recheck: pytest.MonkeyPatch
) -> None:
    del recheck
    proxy.drop_replies(command="SUBSCRIBE")
    async with waiting_for(broker, patience=0.2) as waiting:
        with pytest.raises(BrokerUnavailable):
            await soon(waiting.end_of("mail:a"))
        assert broker.calls == []
        assert waiting.stored == (0, 0, 0)


async def test_an_id_that_cannot_be_read_raises_at_once_and_leaves_nothing_behind(
    waiting: Waiting, broker: Watching
) -> None:
    for ask in (waiting.end_of, waiting.look):
        with pytest.raises(ValueError, match="no queue"):
            await soon(ask("no queue"))
    assert (broker.listened, broker.calls) == (0, [])
    assert waiting.stored == (0, 0, 0)


async def test_closing_ends_all_waiting_and_the_subscription(waiting: Waiting, desk: Desk) -> None:
    executing(desk, "a", "b")
    waiters = waits(waiting, "mail:a", "mail:b")
    await registered(desk, "a", "b")
    await waiting.close()
    errors = await soon(asyncio.gather(*waiters, return_exceptions=True))
    assert [type(error) for error in errors] == [BrokerUnavailable] * 2
    assert all("the app was closed" in str(error) for error in errors)
    await aeventually(lambda: subscribers(desk) == 0)
    with pytest.raises(BrokerUnavailable, match="closed"):
        await soon(waiting.end_of("mail:a"))


async def test_closing_ends_a_waiting_whose_subscription_is_under_way(
    waiting: Waiting, proxy: Proxy, complaints: list[dict[str, Any]]
) -> None:
    """Its caller has cancelled nothing, so it gets no CancelledError."""
    proxy.refuse()
    first, second = waits(waiting, "mail:a", "mail:b")
    await asyncio.sleep(0)
    await waiting.close()
    with pytest.raises(BrokerUnavailable, match="the app was closed"):
        await soon(first)
    with pytest.raises(BrokerUnavailable, match="the app was closed"):
        await soon(second)
    assert waiting.stored == (0, 0, 0)
    del first, second
    gc.collect()
    assert complaints == []


async def test_closing_ends_a_waiting_whose_subscription_is_not_answered(
    waiting: Waiting, broker: Watching, desk: Desk
) -> None:
    broker.may_listen.clear()
    waiters = waits(waiting, "mail:a", "mail:b")
    await aeventually(lambda: broker.listened == 1)
    await waiting.close()
    errors = await soon(asyncio.gather(*waiters, return_exceptions=True))
    assert [str(error) for error in errors] == [CLOSED] * 2


async def test_a_waiter_that_gives_up_while_its_subscription_is_under_way_is_cancelled(
    waiting: Waiting, proxy: Proxy
) -> None:
    proxy.refuse()
    (waiter,) = waits(waiting, "mail:a")
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait([waiter])
    assert waiter.cancelled()
    assert waiting.stored == (0, 0, 0)


async def test_after_closing_nothing_is_under_way_any_more(
    waiting: Waiting, desk: Desk, proxy: Proxy
) -> None:
    """Neither the next look, nor an attempt to subscribe that is not answered."""
    executing(desk, "a")
    (waiter,) = waits(waiting, "mail:a")
    await aeventually(lambda: waiting.stored == (1, 1, 0))
    proxy.drop_replies(command="SUBSCRIBE")
    proxy.cut_all()
    await aeventually(lambda: subscribers(desk) == 1)
    assert (len(tasks_of(RECHECKING)), len(tasks_of(SUBSCRIBING))) == (1, 1)
    await waiting.close()
    with pytest.raises(BrokerUnavailable):
        await soon(waiter)
    await aeventually(lambda: not tasks_of(RECHECKING, SUBSCRIBING))
    await aeventually(lambda: subscribers(desk) == 0)
