"""The story of a job describes what has really happened to it: each case is made with a real worker."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from fennelq import (
    App,
    AsyncResult,
    Limit,
    Rate,
    RateLimited,
    RetryPolicy,
    Snooze,
    Status,
    Story,
    current_job,
)
from fennelq.broker import verbs
from fennelq.broker.keys import queue_keys
from fennelq.broker.verbs.times import RUN, Report, field_of
from fennelq.testing import Testing
from tests.features.conftest import MakeApp, user_who_may_not
from tests.features.test_speculation import Runs, speculating, two_executors
from tests.kit.processes import executors
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.waiting import aeventually
from tests.kit.workers import running

_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)? (?:ms|s|min)|under 1 ms)\b")


async def story(app: App, result: AsyncResult[Any]) -> Story:
    found = await app.jobs.story(result.id)
    assert found is not None
    return found


async def sentence(app: App, result: AsyncResult[Any]) -> str:
    """The sentence. Its times are `NOW` and `SOME TIME`, and its executors `<1>`, `<2>`, in the order of the runs."""
    found = await story(app, result)
    text = _DURATION.sub("SOME TIME", _TIME.sub("NOW", found.sentence))
    for number, executor in enumerate(dict.fromkeys(run.executor for run in found.runs), 1):
        text = text.replace(str(executor), f"<{number}>")
    return text.replace(result.id, "ID")


async def outcomes(app: App, result: AsyncResult[Any]) -> list[str]:
    return [run.outcome for run in (await story(app, result)).runs]


async def has_status(result: AsyncResult[Any], status: Status) -> bool:
    return await result.status() is status


# With workers in other processes

TASKS = """
import asyncio, os, signal
from pathlib import Path
from fennelq import App, current_job

app = App("shop")

@app.task(name="shop:hold")
async def hold(gate: str) -> int:
    Path(f"{gate}.{current_job().fence}").write_text(str(os.getpid()))
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    return current_job().fence

@app.task(name="shop:crash")
async def crash(times: int) -> int:
    if current_job().fence <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return current_job().fence
"""


class Workers:
    """`fennelq worker` in processes of their own, and a gate at which their jobs wait."""

    def __init__(self, spawn: Spawner, server: Server, folder: Path) -> None:
        self._spawn, self._server, self._folder = spawn, server, folder
        (folder / "tasks.py").write_text(TASKS, "utf-8")
        self.gate = folder / "gate"

    def __call__(self) -> Process:
        """One more worker, with one executor."""
        environment = {
            "FENNELQ_REDIS_URL": self._server.url,
            "FENNELQ_LEASE": "5",
            "FENNELQ_MAINTENANCE_INTERVAL": "0.2",
            "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(self._folder)]),
        }
        words = ("worker", "-A", "tasks:app", "-p", "1", "-c", "2", "--grace", "0.1")
        return self._spawn("fennelq", *words, environment=environment)

    async def begun(self, number: int) -> int:
        """Waits until this run of `hold` has begun; returns the id of its process."""
        path = self.gate.with_name(f"gate.{number}")
        return int(await aeventually(lambda: path.exists() and path.read_text(), within=45))


@pytest.fixture
def workers(spawn: Spawner, server: Server, tmp_path: Path) -> Workers:
    return Workers(spawn, server, tmp_path)


async def test_kill_9(app: App, workers: Workers) -> None:
    workers()
    result = await app.send("shop:hold", str(workers.gate))
    os.kill(await workers.begun(1), signal.SIGKILL)
    await workers.begun(2)
    workers.gate.touch()
    assert await result.get(timeout=45) == 2
    assert await sentence(app, result) == (
        "It succeeded on <2> in its second run, which took SOME TIME. Executor <1> was killed (SIGKILL) during the "
        "first run; when its lease had run out, <2> took the job over."
    )
    assert await outcomes(app, result) == ["lost", "succeeded"]


@contextmanager
def stopped(worker: Process) -> Generator[None]:
    """The worker and its executor, stopped by SIGSTOP; killed at the end."""
    processes = [psutil.Process(worker.pid), *executors(worker)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


async def test_sigstop(app: App, workers: Workers) -> None:
    first = workers()
    result = await app.send("shop:hold", str(workers.gate))
    await workers.begun(1)
    with stopped(first):
        workers()
        await workers.begun(2)
        workers.gate.touch()
        assert await result.get(timeout=45) == 2
        assert await sentence(app, result) == (
            "It succeeded on <2> in its second run, which took SOME TIME. Executor <1> did not renew its lease during "
            "the first run; when its lease had run out, <2> took the job over. If it goes on, its outcome is refused."
        )


async def test_a_deploy(app: App, workers: Workers) -> None:
    old = workers()
    result = await app.send("shop:hold", str(workers.gate))
    await workers.begun(1)
    old.term()
    assert old.returncode(30) == 0
    assert await sentence(app, result) == (
        "It waits for its next run: no worker runs; start one with `fennelq worker`. "
        "Executor <1> was stopped, as by a deploy, and handed its run back, which costs no try."
    )
    workers()
    await workers.begun(2)
    workers.gate.touch()
    assert await result.get(timeout=45) == 2
    assert await sentence(app, result) == (
        "It succeeded on <2> in its second run, which took SOME TIME. "
        "Executor <1> was stopped, as by a deploy, and handed the first run back, which costs no try."
    )


async def test_quarantine(app: App, workers: Workers) -> None:
    workers()
    result = await app.send("shop:crash", 2)
    assert await result.get(timeout=60) == 3
    assert await sentence(app, result) == (
        "It succeeded on <3> in its third run, which took SOME TIME (in quarantine: alone in an executor of its own). "
        "Of its 2 earlier runs, 2 were lost with the executor (last: SIGKILL)."
    )


# With an executor of this process


async def test_a_plain_success(app: App) -> None:
    @app.task(name="shop:add")
    async def add(a: int) -> int:
        return a

    async with running(app) as executor:
        result = await add.delay(1)
        await result.get(timeout=30)
        assert await sentence(app, result) == "It succeeded on <1> after SOME TIME."
    found = await story(app, result)
    assert [run.executor for run in found.runs] == [executor.name]
    assert [_DURATION.sub("SOME TIME", line.text) for line in found.lines] == [
        "Sent to queue 'default'",
        f"First run begins on {executor.name}, SOME TIME after it was sent",
        "Succeeded after SOME TIME",
    ]
    assert await asyncio.to_thread(app.sync.jobs.story, result.id) == found
    assert await app.jobs.story("default:unknown") is None


async def test_a_retry_and_then_success(app: App) -> None:
    @app.task(name="shop:flaky", retry=RetryPolicy.fixed(2, delay=0))
    async def flaky() -> None:
        if current_job().tries == 1:
            raise ConnectionError("refused")

    async with running(app):
        result = await flaky.delay()
        await result.get(timeout=30)
    assert await sentence(app, result) == (
        "It succeeded on <1> in its second run, which took SOME TIME. "
        "The first run failed (ConnectionError: refused)."
    )


async def test_death_and_replay(app: App) -> None:
    broken = True

    @app.task(name="shop:charge", retries=0)
    async def charge() -> None:
        if broken:
            raise ValueError("no money")

    async with running(app):
        result = await charge.delay()
        await aeventually(lambda: has_status(result, Status.DEAD))
        assert await sentence(app, result) == (
            "It died after 1 try: ValueError: no money. `fennelq job retry ID` runs it again."
        )
        broken = False
        assert (await app.jobs.retry(result.id)).done
        await aeventually(lambda: has_status(result, Status.SUCCESS))
    assert await sentence(app, result) == (
        "It succeeded on <1> in its second run, which took SOME TIME. It died after the first run "
        "(ValueError: no money). It was dead, and was replayed once, at NOW."
    )
    assert await outcomes(app, result) == ["died", "succeeded"]


async def test_a_snooze(app: App, t: Testing) -> None:
    @app.task(name="shop:later")
    async def later() -> None:
        if current_job().fence == 1:
            raise Snooze(300)

    result = await later.delay()
    await t.run_until_idle()
    assert await sentence(app, result) == (
        "It is scheduled, due in SOME TIME (NOW). Its run was put off: snoozed, or refused by a rate."
    )
    t.tick(300)
    await t.run_until_idle()
    assert await sentence(app, result) == (
        "It succeeded on <1> in its last run, which took SOME TIME. One more run began, and left no line in its "
        "history, as runs that are snoozed or refused by a rate."
    )


async def test_a_job_refused_by_a_rate(app: App) -> None:
    @app.task(name="shop:call", rate_limit=Rate("100/s"))
    async def call() -> None:
        raise RateLimited(retry_after=300)

    async with running(app) as executor:
        result = await call.delay()
        await aeventually(lambda: executor.state.held.done == 1)
        text = await aeventually(lambda: _matching(app, result, "the rate"))
    assert text == (
        "It waits for its next run: it waits for the rate shop:call, next in its line; it opens in SOME TIME. "
        "Its run was put off: snoozed, or refused by a rate."
    )
    await result.cancel()


async def _matching(app: App, result: AsyncResult[Any], words: str) -> str | None:
    text = await sentence(app, result)
    return text if words in text else None


async def test_cancel_in_the_queue_and_during_the_run(app: App) -> None:
    begun = asyncio.Event()

    @app.task(name="shop:linger")
    async def linger() -> None:
        begun.set()
        await asyncio.sleep(600)

    queued = await linger.options(delay=600).delay()
    await queued.cancel("too late")
    assert await sentence(app, queued) == "It was cancelled before it began (too late)."
    async with running(app):
        result = await linger.delay()
        await begun.wait()
        assert await sentence(app, result) == "It has been running for SOME TIME on <1>."
        assert await result.cancel("too slow", wait=20)
    assert (
        await sentence(app, result) == "It was cancelled during its run on <1>, after SOME TIME (too slow)."
    )


async def test_expiry(app: App, t: Testing) -> None:
    @app.task(name="shop:greet")
    async def greet() -> None: ...

    result = await greet.options(expires=10).delay()
    t.tick(11)
    await t.run_until_idle()
    assert await sentence(app, result) == "It expired, because no executor began it before NOW."


async def test_an_unknown_task(app: App, make_app: MakeApp) -> None:
    app.task(name="shop:add")(print)
    result = await make_app().send("shop:ad", 1)
    async with running(app):
        await aeventually(lambda: has_status(result, Status.SCHEDULED))
        assert await sentence(app, result) == (
            "It waits for its next run: the workers that took it since NOW could not run it (is their code older than "
            "the sender's?): unknown task 'shop:ad': did you mean 'shop:add'?"
        )
    assert await outcomes(app, result) == ["too old"]
    await result.cancel()


async def test_a_second_copy(app: App, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    second_may_end = asyncio.Event()

    async def second() -> int:
        await second_may_end.wait()
        return 2

    monkeypatch.setattr(runs, "second", second)
    task = speculating(app, runs)
    async with two_executors(app, server, monkeypatch) as pair:
        result = await pair.both_run(task, runs)
        assert await sentence(app, result) == (
            "It has been running for SOME TIME on <1>. A second copy was sent, because a run took unusually long. "
            "The other copy runs on <2>."
        )
        second_may_end.set()
        assert await result.get(timeout=30) == 2
    assert await sentence(app, result) == (
        "It succeeded on <2> in its second run, which took SOME TIME. A second copy was sent, because a run took "
        "unusually long. The run on <1> was stopped, because the other copy was first."
    )


# Why not yet


async def test_due_later(app: App) -> None:
    result = await app.task(name="shop:add")(print).options(delay=600).delay()
    assert await sentence(app, result) == "It is scheduled, due in SOME TIME (NOW)."
    await result.cancel()


async def test_paused_by_a_person(app: App) -> None:
    result = await app.task(name="shop:add", queue="mail")(print).delay()
    async with running(app):
        await app.queue("mail").pause(only="consume", why="the mail server is down")
        text = await sentence(app, await app.task(name="shop:more", queue="mail")(print).delay())
    assert re.fullmatch(
        "It has not begun yet: consuming of queue 'mail' is paused since NOW by .*: the mail server is down; "
        "`fennelq queue resume mail` ends the pause.",
        text,
    )
    assert await result.status() in (Status.SENT, Status.SUCCESS)
    await app.queue("mail").resume()
    await app.queues.purge("mail")


async def test_no_worker(app: App) -> None:
    result = await app.task(name="shop:add", queue="mail")(print).delay()
    assert await sentence(app, result) == (
        "It has not begun yet: no worker runs; start one with `fennelq worker`."
    )
    await result.cancel()


async def test_behind_a_limit(app: App) -> None:
    go_on = asyncio.Event()

    @app.task(name="shop:sync", concurrency=Limit(1))
    async def sync() -> None:
        await go_on.wait()

    async with running(app):
        first = await sync.delay()
        await aeventually(lambda: has_status(first, Status.EXECUTING))
        results = [await sync.delay() for _ in range(2)]
        assert await sentence(app, results[1]) == (
            f"It has not begun yet: it waits for the limit shop:sync, with 1 other before it; held by {first.id}."
        )
        go_on.set()
        await asyncio.gather(*(result.get(timeout=30) for result in results))


async def test_its_turn(app: App) -> None:
    task = app.task(name="shop:add")(len)
    async with running(app) as executor:
        await aeventually(lambda: _serves(app))
        executor.slots.taken += executor.slots.count  # it has no time
        results = await task.map([""] * 1202)
        high = await task.options(priority="high").delay("")
        first, second, middle, last = (results[n] for n in (0, 1, 600, -1))
        waits = "It has not begun yet: it waits for its turn in queue 'default': "
        assert await sentence(app, high) == (
            "It has not begun yet: it is the next in queue 'default'; 1 executor serves it."
        )
        assert await sentence(app, first) == f"{waits}1 job starts before it; 1 executor serves it."
        assert await sentence(app, second) == f"{waits}2 jobs start before it; 1 executor serves it."
        assert await sentence(app, last) == f"{waits}1,202 jobs start before it; 1 executor serves it."
        assert (
            await sentence(app, middle) == f"{waits}more than 501 jobs start before it; 1 executor serves it."
        )
        await _run_lately(app, 600)
        assert await sentence(app, last) == (
            f"{waits}1,202 jobs start before it; 1 executor serves it. "
            "At the rate of the last SOME TIME, that takes about SOME TIME."
        )
        executor.slots.taken -= executor.slots.count
        executor.slots.notify()
        await last.get(timeout=45)


async def _run_lately(app: App, number: int) -> None:
    """An executor reports that it has run so many jobs."""
    report = Report("anna", "a1", 1, {field_of("shop:add", RUN, 0): number})
    await app.client.ask(verbs.times.meter(queue_keys(app.namespace, "default"), report, 60_000))


async def _serves(app: App) -> bool:
    return any(info.alive and info.queues for info in await app.executors.list())


async def test_a_user_who_may_not_read_the_lanes_gets_the_rest_of_the_story(
    server: Server, make_app: MakeApp
) -> None:
    result = await make_app().task(name="shop:add")(print).delay()
    with user_who_may_not(server, "-xinfo") as url:
        async with running(make_app(), queues="other,default") as executor:
            executor.slots.taken += executor.slots.count  # it has no time
            other = make_app(redis_url=url)
            await aeventually(lambda: _serves(other))
            assert await sentence(other, result) == "It has not begun yet, and is in queue 'default'."
            await other.close()
            executor.slots.taken -= executor.slots.count
    await result.cancel()
