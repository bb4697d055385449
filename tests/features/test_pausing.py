"""A queue is paused, and goes on where it stopped when it is resumed."""

from __future__ import annotations

import asyncio
import pickle
import re
from datetime import UTC, datetime, timedelta

import pytest

from fennelq import (
    App,
    AsyncResult,
    ConfigurationError,
    EnqueueFailed,
    QueuePause,
    QueuePaused,
    ResultTimeout,
    Status,
    Task,
    UnknownQueue,
)
from fennelq.broker.keys import queue_keys
from fennelq.broker.verb import Command, as_is
from fennelq.testing import Testing
from fennelq.waiting import reasons
from tests.features.conftest import MakeApp
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

WHY = "the mail server is down"


@pytest.fixture
def welcome(app: App) -> Task[[int], int]:
    """A task of the queue `mail`."""

    @app.task(name="shop:welcome", queue="mail")
    async def welcome(user_id: int) -> int:
        return user_id

    return welcome


# Consuming


async def test_jobs_wait_while_consuming_is_paused_and_run_after_it(
    t: Testing, app: App, welcome: Task[[int], int]
) -> None:
    pause = await app.queue("mail").pause(only="consume", why=WHY)
    assert (pause.consuming, pause.enqueuing, pause.why, pause.ignored_by) == (True, False, WHY, ())
    result = await welcome.delay(1)
    later = await welcome.options(delay=60).delay(2)
    t.tick(60)
    assert (await t.run_until_idle()).succeeded == 0
    assert [await result.status(), await later.status()] == [Status.SENT, Status.SENT]
    assert await app.queue("mail").resume() == pause
    assert (await t.run_until_idle()).succeeded == 2


async def test_other_queues_of_a_worker_go_on_and_a_running_job_ends(
    app: App, welcome: Task[[int], int]
) -> None:
    may_end = asyncio.Event()

    @app.task(queue="mail")
    async def block() -> str:
        await may_end.wait()
        return "ended"

    @app.task(queue="reports")
    async def report() -> str:
        return "written"

    async with running(app, concurrency=2, queues="mail,reports"):
        blocker = await block.delay()
        await aeventually(lambda: _is_executing(blocker))
        await app.queue("mail").pause()
        assert await (await report.delay()).get(timeout=30) == "written"
        may_end.set()
        assert await blocker.get(timeout=30) == "ended"
        await app.queue("mail").resume()
        assert await (await welcome.delay(7)).get(timeout=30) == 7


async def test_a_pause_outlives_every_process(app: App, make_app: MakeApp, welcome: Task[[int], int]) -> None:
    await app.queue("mail").pause(only="consume")
    result = await welcome.delay(1)
    await app.close()
    async with running(app):
        with pytest.raises(ResultTimeout, match="consuming of queue 'mail' is paused since"):
            await result.get(timeout=0.05)
        await make_app().queues.resume("default")
        assert await result.status() is Status.SENT
        await app.queue("mail").resume()
        assert await result.get(timeout=30) == 1


async def test_a_resume_wakes_all_of_many_executors(app: App, server: Server) -> None:
    """A script wakes a hundred at a time."""
    await app.queue("default").pause(only="consume")
    halted = queue_keys("shop", "default")["halted"]
    with server.client() as client:
        client.sadd(halted, *(f"executor-{number}" for number in range(250)))
        await app.queue("default").resume()
        assert client.exists(halted) == 0


# Enqueuing


async def test_a_caller_learns_who_paused_the_queue_when_and_why_and_sends_the_job_later(
    t: Testing, app: App, welcome: Task[[int], int]
) -> None:
    pause = await app.queue("mail").pause(only="enqueue", who="anna@web-1", why=WHY)
    with pytest.raises(QueuePaused) as raised:
        await welcome.delay(1)
    error = raised.value
    assert (error.queue, error.pause, [job.task for job in error.jobs]) == ("mail", pause, ["shop:welcome"])
    assert re.fullmatch(
        r"queue 'mail' takes no jobs: enqueuing is paused since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC by anna@web-1: "
        rf"{WHY}\. Send the jobs again \(app\.enqueue\(error\.jobs\)\) after `fennelq queue resume mail`",
        str(error),
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert t.left() == []
    assert await app.queue("mail").resume() == pause
    await app.enqueue(error.jobs)
    assert (await t.run_until_idle()).succeeded == 1


async def test_the_jobs_of_one_call_are_refused_together(
    t: Testing, app: App, welcome: Task[[int], int]
) -> None:
    await app.queue("mail").pause()
    with pytest.raises(QueuePaused) as raised:
        await app.enqueue([welcome.job(1), welcome.job(2)])
    assert len(raised.value.jobs) == 2
    elsewhere = welcome.options(queue="default").job(3)
    with pytest.raises(EnqueueFailed) as failed:
        await app.enqueue([welcome.job(1), elsewhere, welcome.job(2)])
    assert {place: type(error) for place, error in failed.value.failures.items()} == {
        0: QueuePaused,
        2: QueuePaused,
    }
    assert failed.value.handles[1].id == elsewhere.id
    assert (await t.run_until_idle()).succeeded == 1


async def test_what_was_promised_before_goes_on_while_enqueuing_is_paused(t: Testing, app: App) -> None:
    """Retries, due jobs, replayed jobs, and jobs of schedules."""
    runs: list[str] = []

    @app.task(queue="mail", retries=1)
    async def once_more(name: str) -> None:
        runs.append(name)
        if runs.count(name) == 1 or (name == "dead" and runs.count(name) < 3):
            raise ValueError(name)

    @app.every(60)
    @app.task(name="shop:beat", queue="mail")
    async def beat() -> None:
        runs.append("beat")

    await once_more.delay("dead")
    await t.run_until_idle()
    t.tick(60)
    await t.run_until_idle()
    await once_more.options(delay=60).delay("due")
    await app.queue("mail").pause(only="enqueue")
    assert (await app.dlq.replay()).replayed == 1
    for _ in range(3):
        await t.run_until_idle()
        t.tick(90)
    await t.run_until_idle()
    assert runs.count("dead") == 3
    assert runs.count("due") == 2


async def test_a_schedule_sends_its_jobs_to_a_paused_queue_and_a_person_does_not(
    app: App, server: Server
) -> None:
    @app.every(0.05)
    @app.task(name="shop:beat", queue="mail")
    async def beat() -> None: ...

    info = await app.schedules.add(beat.job(), name="often", every=0.05)
    assert info.name == "often"
    await app.queue("mail").pause()
    async with running(app):
        await aeventually(lambda: _waits(app, 2))
    with pytest.raises(QueuePaused):
        await app.schedules.run("often")
    assert (await app.queue("mail").info()).running == 0
    await app.schedules.remove("often")


# With and without an event loop


async def test_code_without_an_event_loop_pauses_and_resumes_a_queue(
    app: App, welcome: Task[[int], int]
) -> None:
    await asyncio.to_thread(pause_and_resume, app, welcome)
    with pytest.warns(RuntimeWarning, match=r"use `await app\.queues\.resume\(…\)`"):
        assert app.sync.queue("mail").resume() is None


def pause_and_resume(app: App, welcome: Task[[int], int]) -> None:
    queue = app.sync.queue("mail")
    assert queue.resume() is None
    pause = queue.pause(why=WHY)
    assert queue.info().paused == pause
    with pytest.raises(QueuePaused, match=WHY):
        welcome.sync.delay(1)
    assert queue.resume(only="enqueue") == pause
    result = welcome.sync.delay(1)
    left = queue.info().paused
    assert left is not None
    assert (left.consuming, left.enqueuing, left.since) == (True, False, pause.since)
    assert [job.id for job in queue.peek()] == [result.id]
    assert queue.resume() == left
    assert queue.purge() == 1
    assert repr(queue) == "<BlockingQueue mail>"


async def test_the_methods_of_one_queue_are_those_of_all(
    t: Testing, app: App, welcome: Task[[int], int]
) -> None:
    queue = app.queue("mail")
    assert (queue.name, repr(queue)) == ("mail", "<Queue mail>")
    result = await welcome.delay(1)
    assert await queue.info() == await app.queues.info("mail")
    assert [job.id for job in await queue.peek(1, "waiting")] == [result.id]
    assert await queue.purge() == 1
    assert await queue.info() == await app.queues.info("mail")


# Who, when, why


async def test_without_a_name_the_user_and_the_host_have_paused_the_queue(app: App) -> None:
    pause = await app.queue("default").pause()
    assert re.fullmatch(r"[^@]+@[^@]+", pause.who)
    assert pause.since is not None
    assert abs(pause.since - datetime.now(UTC)) < timedelta(minutes=5)
    assert str(pause) == f"consuming and enqueuing are paused{pause.origin}"
    await app.queue("default").resume()


async def test_a_second_pause_adds_to_the_first(app: App) -> None:
    first = await app.queue("default").pause(only="enqueue", who="anna", why="slow")
    second = await app.queue("default").pause(only="consume", who="berta", why="down")
    assert second == QueuePause(
        consuming=True, enqueuing=True, who="berta", since=first.since, why="down", ignored_by=()
    )
    assert await app.queue("default").resume() == second
    assert await app.queue("default").resume() is None


async def test_an_unknown_queue_is_refused_with_the_nearest_name(
    app: App, welcome: Task[[int], int], server: Server
) -> None:
    for change in (app.queues.pause, app.queues.resume):
        with pytest.raises(
            UnknownQueue, match=r"queue 'mial' does not exist: did you mean 'mail'\?"
        ) as raised:
            await change("mial")
        assert raised.value.queue == "mial"
    with server.client() as client:
        assert client.exists(queue_keys("shop", "mial")["paused"]) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"only": "both"}, r"only 'both' is not one of consume, enqueue"),
        ({"why": "two\nlines"}, r"why 'two\\nlines' is not valid: use 1-500 characters, on one line"),
        ({"who": 7}, r"who must be a string, not an int object"),
    ],
)
async def test_a_value_that_is_not_valid_is_refused_before_anything_is_paused(
    app: App, given: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await app.queues.pause("default", **given)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert (await app.queue("default").info()).paused is None
    with pytest.raises(ConfigurationError, match="queue 'a b' is not valid"):
        app.queue("a b")


# Why a job does not start


async def test_a_job_of_a_paused_queue_says_so(
    t: Testing, app: App, welcome: Task[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = await app.queue("mail").pause(only="consume", who="anna", why=WHY)
    result, later = await welcome.delay(1), await welcome.options(delay=60).delay(2)
    expected = (
        f"consuming of queue 'mail' is paused{pause.origin}; `fennelq queue resume mail` ends the pause"
    )
    info, of_later = await result.info(), await later.info()
    assert info is not None
    assert of_later is not None
    assert (info.waiting_because, of_later.waiting_because) == (expected, None)
    assert (await app.queue("mail").info()).waiting_because == [expected]
    for bound in ("SHORTEST", "LONGEST"):  # however busy the machine is
        monkeypatch.setattr(reasons, bound, 10.0)
    with pytest.raises(ResultTimeout) as late:
        await result.get(timeout=0.05)
    assert late.value.reason == expected
    await app.queue("mail").resume()
    await app.queue("mail").pause(only="enqueue")
    info = await result.info()
    assert info is not None
    assert info.waiting_because == "no worker runs; start one with `fennelq worker`"
    await app.queue("mail").resume()
    await app.cancel(all=True)


async def test_an_executor_of_an_earlier_version_is_named(app: App) -> None:
    """Those that know a pause report their version."""
    async with running(app) as executor:
        await aeventually(lambda: _reports(app, executor.name))
        assert (await app.queue("default").pause(only="consume")).ignored_by == ()
        now = await app.client.ask(Command(["TIME"], as_is))
        facts = b'{"queues":["default"],"beat_ms":%d}' % (int(now[0]) * 1000)
        await app.client.ask(Command(["HSET", "fq:{shop}:executors", "old.1", facts], as_is))
        assert (await app.queue("default").pause(only="consume")).ignored_by == ("old.1",)
        paused = (await app.queue("default").info()).paused
        assert paused is not None
        assert paused.ignored_by == ("old.1",)
        # It would send nothing to a queue whose enqueuing is paused: that concerns the versions of callers.
        await app.queue("default").resume(only="consume")
        assert (await app.queue("default").pause(only="enqueue")).ignored_by == ()
        await app.queue("default").resume()


# An app under test


async def test_an_app_under_test_meets_a_pause(t: Testing, app: App, welcome: Task[[int], int]) -> None:
    await app.queue("mail").pause(only="consume")
    with t.eager():
        left = await welcome.delay(1)
    assert await left.status() is Status.SENT
    await app.queue("mail").pause()
    with pytest.raises(QueuePaused):
        await welcome.delay(2)
    assert len(t.sent()) == 1
    await app.queue("mail").resume()
    assert (await t.run_until_idle()).succeeded == 1


async def test_a_job_in_quarantine_of_a_paused_queue_is_left(t: Testing, app: App) -> None:
    @app.task(queue="mail")
    async def deadly() -> None:
        await asyncio.sleep(0 if kills > 2 else 3600)

    kills = 0
    result = await deadly.delay()
    for kills in (1, 2):  # noqa: B007
        await t.kill_executor(during=deadly)
    kills = 3
    info = await result.info()
    assert info is not None
    assert (info.place or "").startswith("iso/")
    await app.queue("mail").pause(only="consume")
    assert (await t.run_until_idle()).succeeded == 0
    await app.queue("mail").resume()
    assert (await t.run_until_idle()).succeeded == 1


async def _is_executing(result: AsyncResult[str]) -> bool:
    return await result.status() is Status.EXECUTING


async def _waits(app: App, number: int) -> bool:
    return (await app.queue("mail").info()).waiting >= number


async def _reports(app: App, name: str) -> bool:
    return any(one.name == name and one.facts["version"] for one in await app.executors.list())
