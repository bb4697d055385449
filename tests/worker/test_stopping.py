"""Stopping: what runs may finish, what cannot is handed back, nothing is lost and no try is spent."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from structlog.typing import EventDict

from fennelq import App, AsyncResult, Status
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.broker import ANSWER_TIMEOUT
from fennelq.broker.keys import GROUP, QUARANTINE
from fennelq.broker.trouble import LinkDown
from fennelq.broker.verb import Command, Verb
from fennelq.model.questions import Drain
from fennelq.model.routing import Routing
from fennelq.worker import shutdown
from fennelq.worker.bus import DrainAsked
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.vitals import Blockage
from tests.broker.desk import Desk
from tests.kit.ledger import Ledger
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.worker import shop
from tests.worker.conftest import Workers
from tests.worker.shop import Gate, task_of

Results = list[AsyncResult[Any]]


async def hold_all(app: App, gate: Gate, number: int, function: Callable[..., Any] = shop.hold) -> Results:
    """So many jobs that wait at the gate."""
    task = task_of(app, function)
    return await app.enqueue([task.job(str(gate)) for _ in range(number)])


# In this process


async def test_what_the_deputy_reports_last_does_not_remain(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports on a connection of its own, so the report could arrive after the executor has left."""
    monkeypatch.setattr(shutdown, "LAST_REPORT", 60.0)
    under_way, go_on, order = threading.Event(), threading.Event(), list[str]()
    send = BlockingBroker.run

    def send_slowly(self: BlockingBroker, verb: Verb[Any], timeout: float = ANSWER_TIMEOUT) -> Any:
        if verb.name == "present":
            under_way.set()
            go_on.wait(60)
            order.append("present")
        return send(self, verb, timeout)

    def is_under_way() -> bool:
        # The watchdog finds that the loop works, and may say so before the deputy has looked.
        executor.state.vitals.note_works()
        executor.state.vitals.note_blocked(Blockage("tasks.py:7 in f", "shop:f", 2.0), stand_in=True)
        return under_way.is_set()

    monkeypatch.setattr(BlockingBroker, "run", send_slowly)
    async with running(app) as executor:
        await aeventually(is_under_way)
        leave, end = executor.broker.run, executor.deputy.end

        async def noted(verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
            if verb.name == "absent":
                order.append("absent")
            return await leave(verb, within)

        def end_with_a_late_report() -> None:
            end()
            asyncio.get_running_loop().call_later(0.05, go_on.set)

        monkeypatch.setattr(executor.broker, "run", noted)
        monkeypatch.setattr(executor.deputy, "end", end_with_a_late_report)
    assert order == ["present", "absent"]
    assert await app.executors.list() == []


async def test_what_runs_may_finish_and_nothing_more_is_started(app: App, gate: Gate) -> None:
    async with running(app, concurrency=4) as executor:
        results = await hold_all(app, gate, 10)
        await aeventually(lambda: executor.slots.free == 0)
        executor.stop()
        gate.open()
    statuses = Counter([await result.status() for result in results])
    assert statuses == {Status.SUCCESS: 4, Status.SENT: 6}


async def test_a_job_that_comes_after_the_stop_is_not_taken(app: App, gate: Gate) -> None:
    async with running(app, concurrency=4) as executor:
        (held,) = await hold_all(app, gate, 1)
        await aeventually(lambda: executor.slots.taken == 1)
        executor.stop()
        late = await task_of(app, shop.double).delay(1)
        gate.open()
    assert await held.status() is Status.SUCCESS
    assert await late.status() is Status.SENT


async def test_a_job_in_quarantine_is_stopped_by_a_request(app: App, gate: Gate, server: Server) -> None:
    (result,) = await hold_all(app, gate, 1)
    with Desk.opened(server, "default") as desk:
        desk.redelivered(result.id.partition(":")[2], 3, QUARANTINE)
    executor = Executor(app, ExecutorConfig(grace=5).for_quarantine())
    life = asyncio.create_task(executor.run())
    await aeventually(lambda: executor.slots.taken == 1)
    assert await result.cancel("no longer needed")
    await life
    assert await result.status() is Status.CANCELLED


@pytest.mark.parametrize("function", [shop.hold, shop.hold_in_thread, shop.fail_when_stopped])
async def test_what_exceeds_the_grace_period_is_handed_back_untouched(
    app: App, gate: Gate, function: Callable[..., Any]
) -> None:
    async with running(app, concurrency=4, grace=0.1) as executor:
        results = await hold_all(app, gate, 3, function)
        await aeventually(lambda: executor.slots.taken == 3)
    for result in results:
        await is_as_new(app, result)
    gate.open()
    async with running(app):
        assert [await result.get(timeout=30) for result in results] == [1, 1, 1]


async def test_a_job_that_twenty_deploys_handed_back_has_spent_neither_tries_nor_deliveries(
    app: App, gate: Gate
) -> None:
    (result,) = await hold_all(app, gate, 1)
    for _ in range(20):
        async with running(app, grace=0) as executor:
            await aeventually(lambda: executor.slots.taken == 1)
        await is_as_new(app, result)
    gate.open()
    async with running(app):
        assert await result.get(timeout=30) == 1


async def test_many_jobs_are_handed_back_page_by_page(
    app: App, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is one call of a script, which blocks the server."""
    pages: list[tuple[str, int]] = []
    async with running(app, concurrency=230, grace=0) as executor:
        run = executor.broker.run

        async def noted(verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
            if verb.name == "release":
                pages.append((str(verb.args[1]), len(verb.args[2:]) // 2))
            return await run(verb, within)

        monkeypatch.setattr(executor.broker, "run", noted)
        results = await hold_all(app, gate, 230)
        await aeventually(lambda: executor.slots.free == 0)
    assert [jobs for why, jobs in pages if why == "stopped"] == [100, 100, 30]
    assert {(await result.status()) for result in results} == {Status.SENT}


async def test_a_drain_with_a_grace_period_that_makes_no_sense_keeps_the_one_of_its_worker(
    app: App, logged: list[EventDict]
) -> None:
    """Any client may publish anything on the channel of an executor."""
    async with running(app, grace=7) as executor:
        executor.state.bus.publish(DrainAsked(Drain.read("grace -1")))
        assert (executor.state.ending, executor.state.grace) == ("draining", 7)
    (event,) = [one for one in logged if one["event"] == "grace_ignored"]
    assert (event["log_level"], event["found"], event["seconds"]) == ("warning", "grace -1", 7)


@pytest.mark.audit(unfinished=True)
async def test_a_page_that_cannot_be_handed_back_is_logged_and_stops_nothing(
    app: App, gate: Gate, monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    calls = 0
    async with running(app, concurrency=120, grace=0) as executor:
        run = executor.broker.run

        async def failing(verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
            nonlocal calls
            if verb.name == "release" and (calls := calls + 1) == 2:
                raise LinkDown("cut")
            return await run(verb, within)

        monkeypatch.setattr(executor.broker, "run", failing)
        await hold_all(app, gate, 120)
        await aeventually(lambda: executor.slots.free == 0)
    lines = {line["event"]: line["jobs"] for line in logged if "handed_back" in line["event"]}
    assert lines == {"handed_back": 100, "not_handed_back": 20}


async def test_jobs_of_a_queue_that_is_not_served_any_more_are_handed_back(app: App, gate: Gate) -> None:
    async with running(app, concurrency=4, grace=0) as executor:
        results = await hold_all(app, gate, 2)
        await aeventually(lambda: executor.slots.taken == 2)
        executor.state.serve(Routing({"other": 1}))
        assert [keys.queue for keys in executor.state.queues] == ["other"]
    for result in results:
        await is_as_new(app, result)


async def test_a_second_request_to_stop_skips_the_wait(app: App, gate: Gate) -> None:
    async with running(app, concurrency=4, grace=60) as executor:
        (result,) = await hold_all(app, gate, 1)
        await aeventually(lambda: executor.slots.taken == 1)
        executor.stop()
        executor.stop(now=True)
    await is_as_new(app, result)


async def test_a_handler_that_refuses_to_stop_holds_up_nothing(app: App, gate: Gate) -> None:
    async with running(app, concurrency=4, grace=0.05) as executor:
        (result,) = await hold_all(app, gate, 1, shop.refuse_to_stop)
        await aeventually(lambda: executor.slots.taken == 1)
        executor.stop()
    await is_as_new(app, result)
    gate.open()
    async with running(app):
        assert await result.get(timeout=30) == 1


async def test_an_executor_that_leaves_takes_its_consumers_and_its_name_with_it(app: App) -> None:
    keys = app.client.keys("default")
    async with running(app) as executor:
        await (await task_of(app, shop.double).delay(1)).get(timeout=30)
        await aeventually(lambda: knows(app, executor.name))
    consumers = await app.client.ask(Command(["XINFO", "CONSUMERS", keys["s"], "fq"], list))
    assert consumers == []
    assert not await knows(app, executor.name)


async def test_starts_and_stops_under_load_run_every_job_exactly_once(app: App) -> None:
    runs = Counter[int]()

    @app.task
    async def note(n: int) -> None:
        runs[n] += 1
        await asyncio.sleep(0.002)

    results = await note.map(range(600))
    while not all(runs[n] for n in range(600)):
        async with running(app, concurrency=8, grace=5) as executor:
            await aeventually(partial(have_run, runs, min(len(runs) + 50, 600)))
            executor.stop()
    assert runs == Counter(range(600))
    assert {await result.status() for result in results} == {Status.SUCCESS}


def have_run(runs: Counter[int], number: int) -> bool:
    return len(runs) >= number


# Signals


async def test_sigterm_lets_running_jobs_finish(
    workers: Workers, app: App, gate: Gate, ledger: Ledger
) -> None:
    worker = workers("-p", "2", "-c", "3", "--grace", "60")
    results = await hold_all(app, gate, 10)
    await aeventually(lambda: len(ledger.starts()) == 6)
    worker.term()
    worker.wait_for("stopping")
    gate.open()
    assert worker.returncode() == 0
    assert ledger.starts() == ledger.ends()
    for result in results:
        assert await result.status() is (Status.SUCCESS if result.id in ledger.ends() else Status.SENT)


@pytest.mark.parametrize("signal", ["term", "interrupt"])
async def test_a_second_signal_hands_everything_back_at_once(
    workers: Workers, app: App, gate: Gate, ledger: Ledger, signal: str
) -> None:
    worker = workers("-p", "2", "-c", "2", "--grace", "600")
    results = await hold_all(app, gate, 2) + await hold_all(app, gate, 2, shop.hold_in_thread)
    await aeventually(lambda: len(ledger.starts()) == 4)
    getattr(worker, signal)()
    worker.wait_for("stopping")
    getattr(worker, signal)()
    assert worker.returncode() == 0
    for result in results:
        await is_as_new(app, result)


async def test_a_deploy_runs_every_job_exactly_once_and_loses_none(
    workers: Workers, app: App, ledger: Ledger
) -> None:
    """Three generations of workers, each asked to stop in the middle of its work."""
    nap = task_of(app, shop.nap)
    results = await app.enqueue([nap.job(0.02) for _ in range(300)])
    worker: Process | None = None
    for enough in (60, 120, 180):
        successor = workers("-p", "2", "-c", "4", "--grace", "30")
        if worker is not None:
            worker.term()
        worker = successor
        await aeventually(partial(have_ended, ledger, enough))
    await aeventually(lambda: len(ledger.ends()) == 300)
    assert worker is not None
    worker.term()
    assert worker.returncode() == 0
    assert set(ledger.starts().values()) == {1}
    assert {await result.status() for result in results} == {Status.SUCCESS}


def have_ended(ledger: Ledger, number: int) -> bool:
    return len(ledger.ends()) >= number


async def is_as_new(app: App, result: AsyncResult[Any]) -> None:
    """As if it had never been started: waiting, no try spent, its first delivery still to come."""
    info = await result.info()
    assert info is not None
    assert (info.status, info.tries, info.error, info.owner) == (Status.SENT, 0, None, None)
    assert info.place is not None
    lane, _, entry = info.place.partition("/")
    stream = app.client.keys(info.queue)[lane]
    ((_, fields),) = await app.client.ask(Command(["XRANGE", stream, entry, entry], list))
    assert fields[2:] == []  # the number of a first delivery is not written down
    assert (await app.client.ask(Command(["XPENDING", stream, GROUP], list)))[0] == 0


async def knows(app: App, executor: str) -> bool:
    from fennelq.broker import verbs

    return executor in await app.client.ask(verbs.executors.known_executors(app.namespace))


@pytest.mark.parametrize("function", [shop.hold, shop.hold_in_thread])
async def test_an_executor_ends_in_time_although_redis_is_gone_and_a_thread_is_stuck(
    spawn: Spawner, server: Server, app: App, gate: Gate, ledger: Ledger, function: Callable[..., Any]
) -> None:
    """Nothing can be handed back then: the leases bring the jobs back."""
    environment = {"FENNELQ_REDIS_URL": server.url, **ledger.environment}
    config = ExecutorConfig(app=f"{shop.__name__}:app", concurrency=2, grace=0.1)
    executor = spawn("fennelq.worker.processes.process", config.to_text(), environment=environment)
    await hold_all(app, gate, 1, function)
    await aeventually(lambda: len(ledger.starts()) == 1)
    server.kill()
    executor.term()
    executor.returncode(30)


async def test_an_executor_ends_in_time_although_an_outcome_cannot_be_written_down(
    spawn: Spawner, server: Server, app: App, gate: Gate, ledger: Ledger
) -> None:
    environment = {"FENNELQ_REDIS_URL": server.url, **ledger.environment}
    config = ExecutorConfig(app=f"{shop.__name__}:app", concurrency=2, grace=0.1)
    executor = spawn("fennelq.worker.processes.process", config.to_text(), environment=environment)
    await hold_all(app, gate, 1)
    await aeventually(lambda: len(ledger.starts()) == 1)
    server.kill()
    gate.open()
    await aeventually(lambda: len(ledger.ends()) == 1)
    executor.term()
    executor.returncode(30)
