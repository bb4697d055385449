"""A queue with a bound: calls are refused, wait for room, or drop the oldest job when so many jobs wait."""

from __future__ import annotations

import asyncio
import pickle
import re
import signal
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

import pytest
import redis

from fennelq import (
    App,
    AsyncResult,
    ConfigurationError,
    EnqueueFailed,
    Limit,
    QueueFull,
    Status,
    Task,
    TaskFailed,
)
from fennelq.testing import Testing
from tests.features.conftest import MakeApp
from tests.kit.waiting import eventually

Mail = Task[[int], int]


def mail_of(app: App, **bound: Any) -> Mail:
    """A task of the queue `mail`, in which two jobs may wait."""
    app.queue("mail", max_waiting=2, **bound)

    @app.task(name="shop:welcome", queue="mail")
    async def welcome(user_id: int) -> int:
        return user_id

    return welcome


async def waiting_in(app: App) -> tuple[int, int]:
    """How many jobs wait in `mail` and in the default queue."""
    infos = {info.name: info.waiting + info.in_lines for info in await app.queues.list()}
    return infos.get("mail", 0), infos["default"]


# raise


async def test_a_caller_gets_its_job_back_and_sends_it_when_there_is_room(app: App, t: Testing) -> None:
    welcome = mail_of(app)
    await welcome.map([1, 2])
    with pytest.raises(QueueFull) as raised:
        await welcome.delay(3)
    error = raised.value
    assert (error.queue, error.waiting, error.max_waiting) == ("mail", 2, 2)
    assert [job.task for job in error.jobs] == ["shop:welcome"]
    assert str(error) == (
        "queue 'mail' is full: 2 jobs wait, and max_waiting is 2. 1 job was not sent: send again when the workers "
        "have caught up (app.enqueue(error.jobs)), start more workers, or, if the queue is paused, resume it "
        "(`fennelq queue resume mail`)"
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert (await t.run_until_idle()).succeeded == 2
    (result,) = await app.enqueue(error.jobs)
    assert (await t.run_until_idle()).succeeded == 1
    assert await result.get(timeout=0) == 3


async def test_the_first_jobs_of_a_call_are_sent_as_long_as_there_is_room(app: App, t: Testing) -> None:
    welcome = mail_of(app)
    jobs = [welcome.job(n) for n in range(5)]
    with pytest.raises(QueueFull, match="3 jobs were not sent") as raised:
        await app.enqueue(jobs)
    assert [job.id for job in raised.value.jobs] == [job.id for job in jobs[2:]]
    assert [await app.result(job.id).status() for job in jobs[1:3]] == [Status.SENT, Status.UNKNOWN]
    # Sending all of them again creates none of them twice.
    await t.run_until_idle()
    with pytest.raises(QueueFull, match="1 job was not sent"):
        await app.enqueue(jobs)
    assert (await t.run_until_idle()).succeeded == 2


async def test_jobs_of_other_queues_in_one_call_are_sent_and_each_refusal_is_named(app: App) -> None:
    welcome = mail_of(app)
    elsewhere = welcome.options(queue="default")
    with pytest.raises(QueueFull):
        await app.enqueue([*(welcome.job(n) for n in range(3)), elsewhere.job(3)])
    app.queue("default", max_waiting=1)
    with pytest.raises(EnqueueFailed) as failed:
        await app.enqueue([welcome.job(4), elsewhere.job(5)])
    queues = {place: getattr(error, "queue", "") for place, error in failed.value.failures.items()}
    assert queues == {0: "mail", 1: "default"}
    assert await waiting_in(app) == (2, 1)


async def test_a_job_that_exists_is_not_refused(app: App) -> None:
    welcome = mail_of(app)
    job = welcome.options(key="once").job(1)
    await app.enqueue([job, welcome.job(2)])
    assert (await app.enqueue([job]))[0].id == job.id
    assert (await welcome.options(key="once").delay(3)).deduplicated


async def test_a_refused_call_does_not_hold_its_key(app: App, t: Testing) -> None:
    welcome = mail_of(app)
    await welcome.map([1, 2])
    for _ in range(2):
        with pytest.raises(QueueFull):
            await welcome.options(key="once").delay(3)
    await t.run_until_idle()
    result = await welcome.options(key="once").delay(4)
    assert not result.deduplicated
    assert (await t.run_until_idle()).succeeded == 1
    assert await result.get(timeout=0) == 4


# wait


async def begun_to_wait(calling: asyncio.Task[Any]) -> None:
    """The call has met the full queue, and sleeps."""
    (done, _) = await asyncio.wait([calling], timeout=0.03)
    assert not done


async def test_a_call_waits_for_room_and_others_go_on(app: App) -> None:
    welcome = mail_of(app, when_full="wait")
    first, _ = await welcome.map([1, 2])
    calling = asyncio.create_task(welcome.delay(3))
    await welcome.options(queue="default").delay(4)
    await begun_to_wait(calling)
    await first.cancel()
    assert await (await calling).status() is Status.SENT
    assert await waiting_in(app) == (2, 1)


async def test_the_jobs_of_a_call_come_in_as_there_is_room_for_them(app: App) -> None:
    welcome = mail_of(app, when_full="wait")
    jobs = [welcome.job(n) for n in range(5)]
    calling = asyncio.create_task(app.enqueue(jobs))
    await begun_to_wait(calling)
    while not calling.done():
        for waiting in await app.queues.peek("mail"):
            await app.result(waiting.id).cancel()
        await asyncio.sleep(0)
    assert [handle.id for handle in calling.result()] == [job.id for job in jobs]
    assert {await handle.status() for handle in calling.result()} <= {Status.SENT, Status.CANCELLED}


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_call_gives_up_after_the_timeout_with_its_jobs(make_app: MakeApp, blocking: bool) -> None:
    app = make_app(enqueue_timeout=1)
    welcome = mail_of(app, when_full="wait")
    await welcome.delay(1)
    jobs = [welcome.job(2), welcome.job(3)]
    with pytest.raises(QueueFull) as raised:
        await (asyncio.to_thread(app.sync.enqueue, jobs) if blocking else app.enqueue(jobs))
    assert [job.id for job in raised.value.jobs] == [jobs[1].id]
    assert await waiting_in(app) == (2, 0)


@pytest.mark.parametrize("blocking", [False, True])
async def test_the_error_of_a_large_call_says_how_many_jobs_waited_in_the_end(
    make_app: MakeApp, blocking: bool
) -> None:
    app, unbounded = make_app(enqueue_timeout=1.5), make_app()
    welcome = mail_of(app, when_full="wait")
    await welcome.map([1, 2])
    jobs = [welcome.job(n) for n in range(150)]
    calling = asyncio.create_task(
        asyncio.to_thread(app.sync.enqueue, jobs) if blocking else app.enqueue(jobs)
    )
    await begun_to_wait(calling)
    await unbounded.enqueue([unbounded.describe("shop:welcome", n, queue="mail") for n in range(5)])
    with pytest.raises(QueueFull) as raised:
        await calling
    assert (raised.value.waiting, len(raised.value.jobs)) == (7, 150)


async def test_a_call_that_is_cancelled_while_it_waits_creates_no_job(app: App) -> None:
    welcome = mail_of(app, when_full="wait")
    results = await welcome.map([1, 2])
    calling = asyncio.create_task(welcome.delay(3))
    await begun_to_wait(calling)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    for result in results:
        await result.cancel()
    assert await waiting_in(app) == (0, 0)
    assert await (await welcome.delay(4)).status() is Status.SENT


async def test_a_call_without_an_event_loop_waits_as_well(app: App) -> None:
    welcome = mail_of(app, when_full="wait")
    first, _ = await welcome.map([1, 2])
    calling = asyncio.create_task(asyncio.to_thread(welcome.sync.delay, 3))
    await begun_to_wait(calling)
    await first.cancel()
    assert await app.result((await calling).id).status() is Status.SENT


class Interrupted(BaseException):
    """Like KeyboardInterrupt: no error of a job, which a caller would have to expect."""


def attempts(client: redis.Redis) -> int:
    """How often scripts were called so far."""
    found: dict[str, Any] = cast("Any", client.info("commandstats"))
    return int(found["cmdstat_evalsha"]["calls"])


@contextmanager
def signalled_while_it_waits(redis_url: str) -> Generator[None]:
    """A signal arrives in the main thread after some attempts, and its handler raises Interrupted."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handle)
    with redis.Redis.from_url(redis_url) as client, ThreadPoolExecutor(1) as thread:
        begun = attempts(client)

        def interrupt() -> None:
            eventually(lambda: attempts(client) >= begun + 3)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

        interrupting = thread.submit(interrupt)
        try:
            yield
        finally:
            interrupting.result()
            signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_a_waiting_call_without_an_event_loop_and_creates_no_job(redis_url: str) -> None:
    app = App("shop", redis_url=redis_url)
    welcome = mail_of(app, when_full="wait")
    with app.sync:
        welcome.sync.map([1, 2])
        with signalled_while_it_waits(redis_url), pytest.raises(Interrupted):
            welcome.sync.delay(3)
        assert app.sync.queue("mail").purge() == 2
        assert app.sync.queue("mail").info().waiting == 0
        welcome.sync.delay(4)
        assert app.sync.queue("mail").info().waiting == 1


# drop_oldest


async def test_the_oldest_job_goes_to_the_dead_letter_queue_and_can_be_replayed(app: App, t: Testing) -> None:
    welcome = mail_of(app, when_full="drop_oldest")
    results = await welcome.map([1, 2, 3])
    with pytest.raises(TaskFailed, match=re.escape("the queue was full (max_waiting is 2)")) as raised:
        await results[0].get(timeout=30)
    assert (raised.value.error_type, raised.value.tries) == ("Dropped", 0)
    assert str(raised.value) == (
        f"job {results[0].id} was dropped before it ran: the queue was full (max_waiting is 2), "
        "and this was its oldest job"
    )
    assert [letter.reason for letter in await app.dlq.list()] == ["dropped"]
    assert (await app.dlq.replay()).replayed == 1
    assert await waiting_in(app) == (3, 0)
    assert (await t.run_until_idle()).succeeded == 3
    assert await results[0].get(timeout=0) == 1


async def test_jobs_in_lines_count_and_the_one_that_has_waited_longest_is_dropped(
    app: App, t: Testing
) -> None:
    welcome = mail_of(app, when_full="drop_oldest").options(concurrency=Limit(1, key="user_id"))
    results: list[AsyncResult[int]] = [await welcome.delay(7) for _ in range(3)]
    assert [await one.status() for one in results] == [Status.DEAD, Status.SENT, Status.SENT]
    assert await waiting_in(app) == (2, 0)
    assert (await t.run_until_idle()).succeeded == 2


# The queue, and mistakes


async def test_the_numbers_of_a_queue_have_its_bound(app: App) -> None:
    welcome = mail_of(app, when_full="wait")
    await welcome.delay(1)
    info = await app.queue("mail").info()
    assert (info.max_waiting, info.when_full, info.fullness) == (2, "wait", 0.5)
    info = await app.queue("default").info()
    assert (info.max_waiting, info.when_full, info.fullness) == (None, None, None)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no job": ({"max_waiting": 0}, "at least 1, not 0. To refuse all jobs, pause the queue"),
    "a text": (
        {"max_waiting": "10"},
        "max_waiting is the number of jobs that may wait, at least 1, not '10'",
    ),
    "yes": ({"max_waiting": True}, "at least 1, not True"),
    "misspelt": (
        {"max_waiting": 1, "when_full": "drop_oldst"},
        "when_full 'drop_oldst' is not valid: did you mean 'drop_oldest'?",
    ),
    "no number": ({"when_full": "wait"}, "queue 'mail': when_full='wait' needs max_waiting="),
    "two numbers": (
        {"max_waiting": 3},
        "queue 'mail' is declared twice, with max_waiting=2, when_full='raise' and with max_waiting=3",
    ),
}


@pytest.mark.parametrize(("bound", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_bound_is_an_error_that_says_what_to_do(bound: dict[str, Any], says: str) -> None:
    app = App("shop", redis_url="redis://localhost:1")
    app.queue("mail", max_waiting=2)
    app.sync.queue("mail", max_waiting=2, when_full="raise")
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        app.queue("mail", **bound)
