"""The workbench: a job is held from its start until the answer to its outcome, and every end is logged."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from types import coroutine
from typing import Any, cast

import pytest
from structlog.typing import EventDict

from fennelq import App, JobContext, Reject, RetryPolicy, Snooze, Status, current_job
from fennelq.broker import verbs
from fennelq.broker.verbs.runs import Settled
from fennelq.model.job import Delivery, JobFailure
from fennelq.model.outcome import Outcome, died
from fennelq.model.progress import Progress
from fennelq.worker.bus import Bus, CancelRequested, JobArrived, JobDue, JobLost, RunOutrun
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.running.body import TimeOut
from fennelq.worker.running.held import LOST, STOPPED, Answer, Held, HeldJobs
from fennelq.worker.running.runner import Runner
from fennelq.worker.running.settler import Share
from fennelq.worker.running.workbench import Workbench
from tests.broker.desk import Desk
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.worker import shop
from tests.worker.shop import Gate, task_of
from tests.worker.states import published

HOLD = f"{shop.__name__}:hold"
REFUSE = f"{shop.__name__}:refuse_to_stop"


class Bench:
    """The workbench of an executor that reads nothing: jobs are put on it by hand."""

    def __init__(self, app: App, desk: Desk) -> None:
        self.executor = Executor(app, ExecutorConfig(concurrency=4))
        self.desk = desk

    @property
    def workbench(self) -> Workbench:
        return self.executor.workbench

    @property
    def held(self) -> HeldJobs:
        return self.executor.state.held

    def start_all(self) -> list[Delivery]:
        """Everything that waits in the queue `default`."""
        deliveries = self.desk.take(self.executor.name)
        for delivery in deliveries:
            self.workbench.start(delivery)
        return deliveries

    async def all_done(self) -> None:
        await aeventually(lambda: not self.held.tasks())
        await self.workbench.settled()


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    """The queue `default`."""
    with Desk.opened(server, "default") as desk:
        yield desk


@pytest.fixture
async def bench(app: App, desk: Desk) -> AsyncIterator[Bench]:
    bench = Bench(app, desk)
    yield bench
    await bench.executor.broker.close()


@pytest.fixture
async def cut_off(desk: Desk, proxy: Proxy) -> AsyncIterator[Bench]:
    """A bench that talks to Redis through the proxy, and gives a run up at once."""
    async with shop.app_of(redis_url=proxy.url, stop_grace=0.01) as app:
        bench = Bench(app, desk)
        yield bench
        await bench.executor.broker.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What every clock of the process shows: the last of these."""
    moments = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: moments[-1])
    return moments


async def held(app: App, gate: Gate, number: int = 1) -> list[str]:
    """The ids of so many jobs that will wait at the gate."""
    return [(await task_of(app, shop.hold).delay(str(gate))).id for _ in range(number)]


def lines(logged: Sequence[EventDict], event: str) -> list[EventDict]:
    return [line for line in logged if line["event"] == event]


# In hand


async def test_a_job_is_held_while_it_runs_and_until_its_outcome_is_written(
    app: App, bench: Bench, gate: Gate
) -> None:
    (job,) = await held(app, gate)
    (delivery,) = bench.start_all()
    assert bench.held.tokens() == [delivery.token]
    assert bench.workbench.holds(delivery.token)
    assert not bench.workbench.holds(("default", "s", "0-1"))
    assert bench.executor.slots.taken == 1
    gate.open()
    await bench.all_done()
    assert bench.held.tokens() == []
    assert not bench.workbench.holds(delivery.token)
    assert (bench.executor.slots.taken, bench.held.done) == (0, 1)
    assert await app.result(job).get(timeout=30) == 1


async def test_a_job_is_held_without_a_slot_while_the_answer_to_its_outcome_is_awaited(
    app: App, cut_off: Bench, gate: Gate, proxy: Proxy
) -> None:
    (job,) = await held(app, gate)
    (delivery,) = cut_off.start_all()
    proxy.blackhole()
    gate.open()
    await aeventually(lambda: cut_off.executor.slots.taken == 0)
    assert cut_off.held.tasks() == []
    assert cut_off.held.tokens() == [delivery.token]
    writing = asyncio.create_task(cut_off.workbench.settled())
    await asyncio.sleep(0)
    assert (writing.done(), cut_off.held.done) == (False, 0)
    proxy.up()
    await writing
    assert (cut_off.held.tokens(), cut_off.held.done) == ([], 1)
    assert await app.result(job).status() is Status.SUCCESS


async def test_which_job_a_task_runs_can_be_asked(app: App, bench: Bench, gate: Gate) -> None:
    jobs = await held(app, gate, 3)
    bench.start_all()
    tasks = bench.held.tasks()
    assert [bench.held.job_of(task) for task in tasks] == [f"{HOLD} ({job})" for job in jobs]
    assert bench.held.job_of(asyncio.current_task()) is None
    gate.open()
    await bench.all_done()


async def test_no_job_runs_where_no_task_runs_even_if_an_outcome_waits_to_be_written(
    app: App, cut_off: Bench, gate: Gate, proxy: Proxy
) -> None:
    """A callback may block the loop: the watchdog must not name a job that has ended."""
    await held(app, gate)
    (delivery,) = cut_off.start_all()
    proxy.blackhole()
    gate.open()
    await aeventually(lambda: cut_off.executor.slots.taken == 0)
    assert cut_off.held.tokens() == [delivery.token]
    assert cut_off.held.job_of(None) is None
    proxy.up()
    await cut_off.workbench.settled()


async def test_jobs_that_have_ended_are_not_among_the_tasks(
    app: App, cut_off: Bench, gate: Gate, proxy: Proxy
) -> None:
    await task_of(app, shop.double).delay(1)
    await held(app, gate, 2)
    cut_off.start_all()
    proxy.blackhole()
    await aeventually(lambda: cut_off.executor.slots.taken == 2)
    assert len(cut_off.held.tokens()) == 3
    assert len(cut_off.held.tasks()) == 2
    proxy.up()
    gate.open()
    await cut_off.all_done()


async def test_a_handler_is_entered_with_the_first_step_of_its_run(
    app: App, bench: Bench, gate: Gate
) -> None:
    await held(app, gate)
    (delivery,) = bench.start_all()
    assert not bench.held.entered(delivery.token)
    await asyncio.sleep(0)
    assert bench.held.entered(delivery.token)
    assert not bench.held.entered(("default", "s", "0-1"))
    gate.open()
    await bench.all_done()


async def test_a_job_keeps_its_slot_until_there_is_room_for_its_outcome(app: App, bench: Bench) -> None:
    backlog, others = bench.workbench.backlog, Share()
    backlog.add(others, 1_000_000, 0)
    job = (await task_of(app, shop.double).delay(21)).id
    bench.start_all()
    await aeventually(lambda: (bench.executor.slots.taken, bench.held.tasks()) == (1, []))
    (run,) = bench.held.by_token.values()
    bench.workbench.ask(run, "too late")
    assert run.asked is None
    assert await app.result(job).status() is Status.EXECUTING
    backlog.remove(others, 1_000_000, 0)
    await aeventually(lambda: bench.executor.slots.taken == 0)
    await bench.workbench.settled()
    assert await app.result(job).get(timeout=30) == 42
    assert bench.held.done == 1


async def test_outcomes_that_a_cancellation_of_everything_has_dropped_are_written_when_handed_over_again(
    app: App, cut_off: Bench, gate: Gate, proxy: Proxy
) -> None:
    results = [await task_of(app, shop.double).delay(n) for n in (1, 2)]
    (running,) = await held(app, gate)
    cut_off.start_all()
    proxy.blackhole()
    await aeventually(lambda: cut_off.executor.slots.taken == 1)
    await asyncio.sleep(0)  # it has begun to write
    (writing,) = (task for task in asyncio.all_tasks() if task.get_name() == "settling")
    writing.cancel()
    await asyncio.wait([writing])
    assert not cut_off.workbench.backlog.busy
    proxy.up()
    cut_off.workbench.settle_again()
    await cut_off.workbench.settled()
    assert cut_off.held.done == 2
    assert [await result.get(timeout=30) for result in results] == [2, 4]
    assert await app.result(running).status() is Status.EXECUTING
    gate.open()
    await cut_off.all_done()


# Taken from us


@pytest.mark.audit(unfinished=True)
async def test_a_job_that_was_taken_from_us_is_cancelled_and_not_settled(
    app: App, bench: Bench, gate: Gate, logged: list[EventDict]
) -> None:
    jobs = await held(app, gate, 3)
    deliveries = bench.start_all()
    await asyncio.sleep(0)  # their handlers have begun
    unknown = ("default", "s", "0-1")
    gone = published(bench.executor.state, JobLost)
    bench.workbench.lose([unknown, deliveries[0].token, deliveries[1].token])
    assert bench.held.tokens() == [deliveries[2].token]
    assert [fact.delivery for fact in gone] == deliveries[:2]
    await aeventually(lambda: bench.executor.slots.taken == 1)
    gate.open()
    await bench.all_done()
    assert bench.held.done == 1
    statuses = [await app.result(job).status() for job in jobs]
    assert statuses == [Status.EXECUTING, Status.EXECUTING, Status.SUCCESS]
    lost = lines(logged, "lease_lost")
    assert [(line["job_id"], line["task"], line["queue"], line["tries"]) for line in lost] == [
        (job, HOLD, "default", 1) for job in jobs[:2]
    ]
    assert {line["log_level"] for line in lost} == {"warning"}


@pytest.mark.audit(unfinished=True)
async def test_a_run_is_cancelled_when_the_other_copy_has_ended_its_job(
    app: App, bench: Bench, gate: Gate, logged: list[EventDict]
) -> None:
    first, _ = await held(app, gate, 2)
    outrun, other = bench.start_all()
    await asyncio.sleep(0)  # their handlers have begun
    bench.executor.state.bus.publish(RunOutrun(outrun.token))
    assert bench.held.tokens() == [other.token]
    await aeventually(lambda: bench.executor.slots.taken == 1)
    gate.open()
    await bench.all_done()
    assert [(line["job_id"], line["log_level"]) for line in lines(logged, "job_outrun")] == [(first, "info")]
    assert lines(logged, "lease_lost") == []


@pytest.mark.audit(unfinished=True)
async def test_what_a_handler_returns_after_its_job_was_taken_from_us_is_dropped(
    app: App, bench: Bench, gate: Gate, logged: list[EventDict]
) -> None:
    refuse = task_of(app, shop.refuse_to_stop)
    job = (await refuse.delay(str(gate))).id
    (delivery,) = bench.start_all()
    await asyncio.sleep(0)  # its handler has begun
    bench.workbench.lose([delivery.token])
    gate.open()
    await bench.all_done()
    await aeventually(lambda: bench.executor.slots.taken == 0)
    await bench.workbench.settled()
    assert bench.held.done == 0
    assert await app.result(job).status() is Status.EXECUTING
    assert len(lines(logged, "lease_lost")) == 1
    assert lines(logged, "job_succeeded") == []


async def test_a_job_whose_outcome_is_on_its_way_is_not_taken_for_lost(
    app: App, cut_off: Bench, proxy: Proxy, logged: list[EventDict]
) -> None:
    job = (await task_of(app, shop.double).delay(21)).id
    (delivery,) = cut_off.start_all()
    proxy.blackhole()
    await aeventually(lambda: cut_off.executor.slots.taken == 0)
    cut_off.workbench.lose([delivery.token])
    assert cut_off.workbench.holds(delivery.token)
    proxy.up()
    await cut_off.workbench.settled()
    assert cut_off.held.done == 1
    assert await app.result(job).get(timeout=30) == 42
    assert lines(logged, "lease_lost") == []


async def test_an_outcome_that_is_refused_because_the_job_is_no_longer_ours_is_logged_once(
    app: App, bench: Bench, desk: Desk, gate: Gate, logged: list[EventDict]
) -> None:
    jobs = await held(app, gate, 2)
    deliveries = bench.start_all()
    desk.release(deliveries[:1])
    gate.open()
    await bench.all_done()
    assert bench.held.tokens() == []
    assert [line["job_id"] for line in lines(logged, "lease_lost")] == jobs[:1]
    assert await app.result(jobs[0]).status() is Status.SENT
    assert await app.result(jobs[1]).get(timeout=30) == 1


@pytest.mark.audit(unfinished=True)
async def test_a_job_that_is_stopped_gives_its_slot_back_and_stays_in_hand(
    app: App, bench: Bench, gate: Gate
) -> None:
    (job,) = await held(app, gate)
    (delivery,) = bench.start_all()
    await asyncio.sleep(0)  # its handler has begun
    (task,) = bench.workbench.stop_all()
    await asyncio.wait([task])
    assert (bench.executor.slots.taken, bench.executor.slots.stuck) == (0, 0)
    assert bench.held.tokens() == [delivery.token]
    await bench.workbench.settled()
    assert bench.held.done == 0
    assert await app.result(job).status() is Status.EXECUTING
    assert task.cancelled() or task.exception() is None


@pytest.mark.audit(unfinished=True)
async def test_a_run_that_other_code_cancels_before_its_first_step_is_not_held_for_ever(
    app: App, bench: Bench, gate: Gate, desk: Desk
) -> None:
    """The heartbeat finds its entry stranded, and the reader asks whether it is held: then its slot is free again."""
    await held(app, gate)
    (delivery,) = bench.start_all()
    (task,) = bench.held.tasks()
    task.cancel()
    await asyncio.wait([task])
    assert (bench.held.tokens(), bench.held.tasks()) == ([], [])
    assert bench.held.never_began() == [delivery.token]
    assert bench.executor.slots.taken == 1
    assert not bench.workbench.holds(delivery.token)
    assert not bench.workbench.holds(delivery.token)
    assert bench.executor.slots.taken == 0


def test_a_run_is_asked_to_stop_once_and_the_first_reason_counts() -> None:
    run = a_run()
    assert run.ask("no longer needed")
    assert not run.ask("too slow")
    assert not run.time_out()
    assert (run.asked, run.cancelled, run.overran) == ("no longer needed", "no longer needed", False)


def test_only_a_run_that_a_client_has_cancelled_is_cancelled_for_good() -> None:
    cancelled, overran, stopped, lost, goes_on = [a_run() for _ in range(5)]
    cancelled.ask("no longer needed")
    overran.time_out()
    stopped.stop(STOPPED)
    lost.stop(LOST)
    assert cancelled.cancelled_by_client
    assert not any(run.cancelled_by_client for run in (overran, stopped, lost, goes_on))
    cancelled.stop(STOPPED)
    assert not cancelled.cancelled_by_client, "its executor hands it back"


def test_a_handler_sees_why_it_is_to_stop_unless_its_executor_stops() -> None:
    """A function in a thread that returned early for that reason would have succeeded."""
    stopped, lost, cancelled = [a_run() for _ in range(3)]
    stopped.stop(STOPPED)
    lost.stop(LOST)
    cancelled.ask("no longer needed")
    cancelled.stop(STOPPED)
    assert [(run.asked, run.cancelled) for run in (stopped, lost, cancelled)] == [
        (STOPPED, None),
        (LOST, LOST),
        ("no longer needed", "no longer needed"),
    ]


def test_the_stack_of_a_run_has_the_calls_of_its_thread_while_it_is_in_one() -> None:
    """Only those below a call of fennelq: the others are of the pool."""
    run, bus, stacks = a_run(), Bus(), list[str]()
    bus.subscribe(JobDue, lambda job: bus.publish(JobArrived(job.queue, "s")))
    bus.subscribe(JobArrived, lambda _: stacks.append(run.stack()))
    bus.publish(JobDue(1, "mail"))
    run.enter_thread()
    bus.publish(JobDue(1, "mail"))
    run.leave_thread()
    bus.publish(JobDue(1, "mail"))
    before, inside, after = stacks
    assert (before, after) == ("", "")
    assert [call.partition(":")[0] for call in inside.split(" > ")] == [__file__] * 2


async def test_runs_that_never_began_are_told_from_those_that_go_on() -> None:
    held, tasks = HeldJobs(), [asyncio.create_task(for_ever()) for _ in range(4)]
    for number, task in enumerate(tasks):
        held.by_token["mail", "s", str(number)] = run = a_run()
        run.task = task
    for task in tasks[1::2]:
        task.cancel()
    await asyncio.wait(tasks[1::2])
    assert [entry for _, _, entry in held.never_began()] == ["1", "3"]
    assert [entry for _, _, entry in held.tokens()] == ["0", "2"]
    assert held.tasks() == tasks[::2]
    for task in tasks:
        task.cancel()


async def test_a_wait_for_the_end_of_a_run_ends_when_one_is_given_up_meanwhile() -> None:
    """One that was given up before does not count: a stop would not wait for the others."""
    held, before = HeldJobs(), asyncio.all_tasks()
    running = asyncio.create_task(for_ever())
    held.note_stuck(a_run())
    await held.one_ended([running], timeout=0.01)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before | {running}, "it leaves nothing behind"
    waiting = asyncio.create_task(held.one_ended([running]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    held.note_stuck(a_run())
    await asyncio.wait_for(waiting, 20)
    assert not running.done()
    running.cancel()
    await aeventually(lambda: asyncio.all_tasks() == before)


async def for_ever() -> None:
    await asyncio.Event().wait()


def test_a_report_of_progress_is_written_if_the_run_has_notes() -> None:
    reports: list[tuple[Held, Progress]] = []

    class Written:
        def report(self, run: Held, progress: Progress) -> bool:
            reports.append((run, progress))
            return len(reports) == 1

    assert not a_run().report(Progress(1))
    run = a_run(Written())
    assert [run.report(Progress(1)), run.report(Progress(2))] == [True, False]
    assert reports == [(run, Progress(1)), (run, Progress(2))]


def a_run(notes: Any = None) -> Held:
    """It has not begun."""
    return Held(Delivery("mail", "s", "1-1", "7", HOLD, b"[[],{}]", b"", 0, 1, 1, 1_700_000_000_000), notes)


@pytest.mark.audit(unfinished=True)
async def test_a_run_that_never_began_and_is_lost_gives_its_slot_back(
    app: App, bench: Bench, gate: Gate
) -> None:
    await held(app, gate)
    (delivery,) = bench.start_all()
    (task,) = bench.held.tasks()
    task.cancel()
    await asyncio.wait([task])
    bench.workbench.lose([delivery.token])
    assert not bench.workbench.holds(delivery.token)
    assert (bench.executor.slots.taken, bench.held.by_token) == (0, {})


@pytest.mark.audit(unfinished=True)
async def test_a_run_that_is_stopped_before_its_first_step_never_enters_its_handler(
    app: App, bench: Bench, gate: Gate
) -> None:
    await held(app, gate)
    (delivery,) = bench.start_all()
    assert not bench.held.entered(delivery.token)
    await asyncio.wait(bench.workbench.stop_all())
    assert bench.held.tokens() == [delivery.token]
    assert not bench.held.entered(delivery.token)
    assert (bench.executor.slots.taken, bench.workbench.backlog.busy) == (0, False)


@pytest.mark.audit(unfinished=True)
async def test_a_stop_asks_every_run_without_an_outcome_and_no_other(
    app: App, cut_off: Bench, gate: Gate, proxy: Proxy
) -> None:
    """Some outcomes wait for room in the backlog: their runs are over."""
    results = [await task_of(app, shop.double).delay(n) for n in range(12)]
    await held(app, gate, 2)
    cut_off.start_all()
    proxy.blackhole()
    await aeventually(lambda: len(cut_off.held.tasks()) == 2)
    room = 2 * cut_off.executor.slots.count
    assert cut_off.executor.slots.taken == 2 + 12 - room
    running = cut_off.held.tasks()
    asked = cut_off.workbench.stop_all()
    assert (len(asked), set(asked)) == (2, set(running))
    await asyncio.wait(running)
    assert cut_off.executor.slots.taken == 12 - room
    proxy.up()
    await aeventually(lambda: cut_off.executor.slots.taken == 0)
    await cut_off.workbench.settled()
    assert [await result.get(timeout=30) for result in results] == [2 * n for n in range(12)]
    assert cut_off.held.done == 12


@pytest.mark.audit(unfinished=True)
@pytest.mark.parametrize("function", [shop.hold, shop.refuse_to_stop])
async def test_a_run_that_was_taken_from_us_and_goes_on_counts_as_stuck_until_it_ends(
    desk: Desk, redis_url: str, gate: Gate, logged: list[EventDict], function: Any
) -> None:
    app = shop.app_of(redis_url=redis_url, stop_grace=0.01)
    bench = Bench(app, desk)
    goes_on = function is shop.refuse_to_stop
    job = (await task_of(app, function).delay(str(gate))).id
    (delivery,) = bench.start_all()
    (task,) = bench.held.tasks()
    await asyncio.sleep(0)  # its handler has begun
    slots, checked = bench.executor.slots, asyncio.Event()
    bench.workbench.lose([delivery.token])
    asyncio.get_running_loop().call_later(0.01, checked.set)  # after the check that `lose` has scheduled
    await checked.wait()
    assert (slots.taken, slots.stuck) == ((1, 1) if goes_on else (0, 0))
    stuck = [(line["job_id"], line["queue"], line["log_level"]) for line in lines(logged, "slot_stuck")]
    assert stuck == ([(job, "default", "error")] if goes_on else [])
    gate.open()
    await asyncio.wait([task])
    assert (slots.taken, slots.stuck, bench.held.stuck) == (0, 0, set())
    assert bench.held.job_of(task) is None
    await bench.executor.broker.close()
    await app.close()


# Runs that ignore their timeout


@pytest.fixture
def overdue(monkeypatch: pytest.MonkeyPatch) -> Callable[[Held], None]:
    """`overdue(held)`: the timeout of its run is over, as the runner reports to the workbench."""
    runs: dict[Held, TimeOut] = {}
    run = Runner.run

    async def noted(runner: Runner, held: Held, time_out: TimeOut) -> Outcome:
        runs[held] = time_out
        return await run(runner, held, time_out)

    def report(held: Held) -> None:
        runs[held](held)

    monkeypatch.setattr(Runner, "run", noted)
    return report


async def test_what_a_run_returns_after_it_was_settled_as_overdue_is_dropped(
    app: App,
    cut_off: Bench,
    gate: Gate,
    proxy: Proxy,
    logged: list[EventDict],
    overdue: Callable[[Held], None],
) -> None:
    """The reply to its settling is still under way when it ends."""
    workbench, slots = cut_off.workbench, cut_off.executor.slots
    job = (await task_of(app, shop.refuse_to_stop).options(timeout=60).delay(str(gate))).id
    (delivery,) = cut_off.start_all()
    (task,) = cut_off.held.tasks()
    await asyncio.sleep(0)  # its handler has begun
    proxy.blackhole()
    overdue(cut_off.held.by_token[delivery.token])
    overdue(cut_off.held.by_token[delivery.token])
    await aeventually(lambda: slots.stuck > 0)
    assert (slots.taken, slots.stuck, workbench.backlog.jobs) == (1, 1, 1)
    assert cut_off.held.job_of(task) == f"{REFUSE} ({job})"
    gate.open()
    await asyncio.wait([task])
    assert (slots.taken, slots.stuck, workbench.backlog.jobs) == (0, 0, 1)
    proxy.up()
    await workbench.settled()
    assert cut_off.held.done == 1
    assert await app.result(job).status() is Status.DEAD
    # Only the reply to its settling tells that it is the first of its kind.
    assert [line["event"] for line in logged] == ["job_died", "slot_stuck", "new_error"]


@pytest.mark.audit(unfinished=True)
async def test_a_run_that_was_taken_from_us_is_not_settled_as_overdue(
    app: App, cut_off: Bench, gate: Gate, logged: list[EventDict], overdue: Callable[[Held], None]
) -> None:
    (job,) = [(await task_of(app, shop.refuse_to_stop).delay(str(gate))).id]
    (delivery,) = cut_off.start_all()
    await asyncio.sleep(0)  # its handler has begun
    run, checked = cut_off.held.by_token[delivery.token], asyncio.Event()
    overdue(run)
    cut_off.workbench.lose([delivery.token])
    asyncio.get_running_loop().call_later(0.01, checked.set)  # after the checks that both have scheduled
    await checked.wait()
    assert (cut_off.executor.slots.stuck, cut_off.workbench.backlog.busy) == (1, False)
    gate.open()
    await aeventually(lambda: cut_off.executor.slots.taken == 0)
    assert await app.result(job).status() is Status.EXECUTING
    assert [line["event"] for line in logged] == ["lease_lost", "slot_stuck"]


# Asked to stop


async def test_a_run_that_is_asked_to_stop_is_cancelled_and_settled_once(
    app: App, bench: Bench, gate: Gate, logged: list[EventDict]
) -> None:
    (job,) = await held(app, gate)
    (delivery,) = bench.start_all()
    await asyncio.sleep(0)  # its handler has begun
    run = bench.held.by_token[delivery.token]
    bench.workbench.ask(run, "not wanted")
    bench.workbench.ask(run, "still not wanted")
    await bench.all_done()
    assert (bench.executor.slots.taken, bench.executor.slots.stuck, bench.held.done) == (0, 0, 1)
    info = await app.result(job).info()
    assert info is not None
    assert (info.status, info.reason) == (Status.CANCELLED, "not wanted")
    assert [(line["event"], line["reason"]) for line in logged] == [("job_cancelled", "not wanted")]


async def test_a_run_that_is_asked_to_stop_before_its_first_step_never_enters_its_handler(
    app: App, bench: Bench, gate: Gate
) -> None:
    (job,) = await held(app, gate)
    (delivery,) = bench.start_all()
    bench.workbench.ask(bench.held.by_token[delivery.token], "not wanted")
    await bench.all_done()
    assert not bench.held.entered(delivery.token)
    assert (bench.executor.slots.taken, bench.held.done, bench.held.tokens()) == (0, 1, [])
    info = await app.result(job).info()
    assert info is not None
    assert (info.status, info.reason) == (Status.CANCELLED, "not wanted")


async def test_a_run_that_is_asked_before_its_first_step_is_not_stuck_when_the_loop_was_blocked(
    app: App, bench: Bench, gate: Gate, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop calls the timers that are due before the first step of a run."""
    (job,) = await held(app, gate)
    (delivery,) = bench.start_all()

    def call_at_once(_: float, call: Callable[..., object], *args: Any) -> None:
        call(*args)

    with monkeypatch.context() as blocked:
        blocked.setattr(asyncio.get_running_loop(), "call_later", call_at_once)
        bench.workbench.ask(bench.held.by_token[delivery.token], "not wanted")
    await bench.all_done()
    slots = bench.executor.slots
    assert (slots.taken, slots.stuck, bench.held.stuck, bench.held.done) == (0, 0, set(), 1)
    assert await app.result(job).status() is Status.CANCELLED
    assert [line["event"] for line in logged] == ["job_cancelled"]


async def test_a_run_that_ignores_both_a_request_and_its_cancellation_is_given_up_once(
    app: App, cut_off: Bench, gate: Gate, logged: list[EventDict]
) -> None:
    """A request, a timeout and the loss of its lease: one outcome, one stuck slot, one line."""
    job = (await task_of(app, shop.refuse_to_stop).delay(str(gate))).id
    (delivery,) = cut_off.start_all()
    await asyncio.sleep(0)  # its handler has begun
    (task,) = cut_off.held.tasks()
    run, slots = cut_off.held.by_token[delivery.token], cut_off.executor.slots
    cut_off.workbench.ask(run, "not wanted")
    await aeventually(lambda: slots.stuck > 0)
    cut_off.workbench.lose([delivery.token])
    cut_off.workbench.ask(run, "again")
    await cut_off.workbench.settled()
    info = await app.result(job).info()
    assert info is not None
    assert (info.status, info.reason) == (Status.CANCELLED, "not wanted")
    assert (slots.taken, slots.stuck, cut_off.held.done) == (1, 1, 1)
    gate.open()
    await asyncio.wait([task])
    assert (slots.taken, slots.stuck, cut_off.held.done) == (0, 0, 1)
    assert [line["event"] for line in logged] == ["job_cancelled", "slot_stuck"]


# Cancelled by other code


@pytest.mark.audit(unfinished=True)
async def test_a_job_that_is_cancelled_together_with_the_executor_is_innocent(
    app: App, bench: Bench, gate: Gate, logged: list[EventDict]
) -> None:
    """Its lease brings it back; what has ended meanwhile is written down."""
    life = asyncio.create_task(lived_by(bench))
    await asyncio.sleep(0)
    (job,) = await held(app, gate)
    (delivery,) = bench.start_all()
    await asyncio.sleep(0)  # its handler has begun
    (task,) = bench.held.tasks()
    task.cancel()
    life.cancel()
    await asyncio.wait([task, life])
    assert (bench.held.tokens(), bench.executor.slots.taken) == ([delivery.token], 0)
    assert not bench.workbench.backlog.busy
    assert await app.result(job).status() is Status.EXECUTING
    assert lines(logged, "job_died") == []
    ended = await task_of(app, shop.double).delay(21)
    bench.start_all()
    await bench.all_done()
    assert await ended.get(timeout=30) == 42


@pytest.mark.parametrize("lives", [True, False])
async def test_a_job_that_is_cancelled_while_its_executor_lives_on_has_failed(
    app: App, bench: Bench, gate: Gate, logged: list[EventDict], lives: bool
) -> None:
    life = asyncio.create_task(lived_by(bench) if lives else asyncio.sleep(0))
    await asyncio.sleep(0)
    (job,) = await held(app, gate)
    bench.start_all()
    await asyncio.sleep(0)  # its handler has begun
    (task,) = bench.held.tasks()
    task.cancel()
    await bench.all_done()
    life.cancel()
    assert bench.executor.slots.taken == 0
    assert await app.result(job).status() is Status.DEAD
    assert [line["job_id"] for line in lines(logged, "job_died")] == [job]


async def lived_by(bench: Bench) -> None:
    """The executor's own task."""
    bench.workbench.begin()
    await asyncio.Event().wait()


# What is logged


class Fates:
    """A task that ends as its argument names."""

    def __init__(self, app: App) -> None:
        @app.task(name="shop:fate", retry=RetryPolicy.fixed(1, delay=100))
        async def fate(how: str) -> str | None:
            if how == "retry":
                raise ConnectionError("once")
            if how == "snooze":
                raise Snooze(100)
            if how == "reject":
                raise Reject("never")
            if how == "wait":
                await self.may_end.wait()
            return how

        self.task = fate
        self.may_end = asyncio.Event()


ENDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "return": ("info", "job_succeeded", {}),
    "retry": (
        "warning",
        "job_retries",
        {"error": "ConnectionError", "message": "once", "max_tries": 2, "retry_in": 100.0},
    ),
    "snooze": ("info", "job_snoozes", {"reason": "snoozed"}),
    "reject": ("error", "job_died", {"reason": "rejected", "error": "fennelq.Reject", "message": "never"}),
}


@pytest.mark.parametrize("how", ENDS)
async def test_every_run_ends_with_a_line_of_its_facts(
    app: App, bench: Bench, logged: list[EventDict], how: str
) -> None:
    job = (await Fates(app).task.delay(how)).id
    bench.start_all()
    await bench.all_done()
    level, event, facts = ENDS[how]
    (line,) = lines(logged, event)
    seconds = line.pop("seconds")
    if "error" in facts:
        assert line.pop("at").startswith("tests/worker/test_workbench.py:")
    if "retry_in" in facts:
        line.pop("retry_at")
        assert line.pop("traceback").endswith("ConnectionError: once\n")
    common = {"job_id": job, "task": "shop:fate", "queue": "default", "tries": 1}
    assert line == {"event": event, "log_level": level, **common, **facts}
    assert 0 <= seconds < 100


async def test_the_line_shows_how_long_the_run_took(
    app: App, bench: Bench, logged: list[EventDict], clock: list[float]
) -> None:
    fates = Fates(app)
    await fates.task.delay("wait")
    bench.start_all()
    await asyncio.sleep(0)
    clock.append(1002.5)
    fates.may_end.set()
    await aeventually(lambda: bench.executor.slots.taken == 0)
    await bench.workbench.settled()
    assert [line["seconds"] for line in lines(logged, "job_succeeded")] == [2.5]


async def test_below_info_only_runs_that_failed_are_worth_a_line(
    app: App, desk: Desk, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.log.wanted", {"info": False, "warning": True, "error": True}.__getitem__)
    bench = Bench(app, desk)
    fates = Fates(app)
    for how in ENDS:
        await fates.task.delay(how)
    bench.start_all()
    await bench.all_done()
    assert sorted(line["event"] for line in logged) == ["job_died", "job_retries", "new_error"]
    await bench.executor.broker.close()


@pytest.mark.audit(unfinished=True)
async def test_a_job_of_an_unknown_task_is_reported_as_not_runnable_and_has_no_end(
    app: App, bench: Bench, logged: list[EventDict]
) -> None:
    with pytest.warns(UserWarning, match="no task 'shop:welcom' is registered"):
        job = (await app.send("shop:welcom")).id
    bench.start_all()
    await bench.all_done()
    assert [(line["event"], line["job_id"]) for line in logged] == [("task_unknown", job)]
    assert [fact["task"] for fact in bench.executor.state.unrunnable.facts()] == ["shop:welcom"]


async def test_the_try_of_a_retried_job_is_counted(app: App, bench: Bench, logged: list[EventDict]) -> None:
    @app.task(name="shop:stumble", retry=RetryPolicy.fixed(1, delay=0))
    async def stumble() -> int:
        if current_job().tries == 1:
            raise ConnectionError("once")
        return current_job().tries

    result = await stumble.delay()
    bench.start_all()
    await bench.all_done()
    bench.desk.do(verbs.queues.promote, 100)
    bench.start_all()
    await bench.all_done()
    assert await result.get(timeout=30) == 2
    assert [(line["event"], line["tries"]) for line in logged] == [("job_retries", 1), ("job_succeeded", 2)]


# A held job by itself


DELIVERY = Delivery("default", "s", "1-1", "7", HOLD, b"[[],{}]", b"", 0, 1, 1, 0)


def test_a_job_is_held_before_it_has_its_task() -> None:
    """The thread that renews its lease may look at any moment."""
    jobs = HeldJobs()
    jobs.by_token[DELIVERY.token] = Held(DELIVERY)
    assert jobs.tokens() == [DELIVERY.token]


async def test_the_stack_of_a_run_shows_every_kind_of_call_in_which_it_waits() -> None:
    """Coroutines, and generators that stand for coroutines."""
    may_end = asyncio.Event()

    async def innermost() -> None:
        await may_end.wait()

    @coroutine
    def bridge() -> Generator[Any, None, None]:
        yield from cast("Any", innermost())

    async def handler() -> None:
        await bridge()

    held = Held(DELIVERY)
    held.task = asyncio.create_task(handler())
    await asyncio.sleep(0)
    calls = [call.rpartition(" in ")[2] for call in held.stack().split(" > ")]
    assert calls == ["handler", "bridge", "innermost", "wait"]
    may_end.set()
    await held.task


# Requests of clients


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        (Answer.SETTLED, True),
        (Answer.SETTLED_BEFORE, True),
        (Answer.NEW_ERROR, True),
        (Answer.LOST, False),
    ],
)
def test_an_outcome_counts_once_and_never_when_another_executor_has_the_job(
    answer: Answer, counts: bool
) -> None:
    held = HeldJobs()
    delivery = Delivery("mail", "s", "1-1", "7", HOLD, b"[]", b"", 0, 1, 1, 0)
    outcome = died(JobFailure("ValueError", "no"), 1, 1000)
    held.by_token[delivery.token] = Held(delivery)
    assert held.settled(Settled(delivery, outcome), answer) is counts
    assert held.by_token == {}
    assert held.settled(Settled(delivery, outcome), answer) is False


async def test_a_job_that_a_client_cancels_is_asked_to_stop(app: App, bench: Bench, gate: Gate) -> None:
    jobs = await held(app, gate, 2)
    first, second = bench.start_all()
    bench.executor.state.bus.publish(CancelRequested(first.token, "no longer needed"))
    assert [bench.held.by_token[one.token].asked for one in (first, second)] == ["no longer needed", None]
    await aeventually(lambda: len(bench.held.tasks()) == 1)
    gate.open()
    await bench.all_done()
    infos = [await app.jobs.info(job) for job in jobs]
    assert [info and (info.status, info.reason) for info in infos] == [
        (Status.CANCELLED, "no longer needed"),
        (Status.SUCCESS, None),
    ]


async def test_a_request_that_arrives_before_its_job_is_carried_out_when_the_job_starts(
    app: App, bench: Bench, gate: Gate
) -> None:
    """The message has overtaken the reply to the fetch: the handler does not begin."""
    jobs = await held(app, gate, 2)
    first, second = bench.desk.take(bench.executor.name)
    bench.executor.state.bus.publish(CancelRequested(first.token, "no longer needed"))
    bench.workbench.start(second)
    bench.workbench.start(first)
    run = bench.held.by_token[first.token]
    await aeventually(lambda: first.token not in bench.held.by_token)
    assert not run.entered
    gate.open()
    await bench.all_done()
    assert [await app.result(job).status() for job in jobs] == [Status.CANCELLED, Status.SUCCESS]
    assert bench.executor.slots.taken == 0


async def test_a_request_for_an_earlier_run_of_a_job_does_not_stop_the_later_one(
    app: App, bench: Bench, gate: Gate, desk: Desk
) -> None:
    (job,) = await held(app, gate)
    (earlier,) = desk.take("berta")
    desk.release([earlier])
    (delivery,) = bench.start_all()
    bench.executor.state.bus.publish(CancelRequested(earlier.token, "too late"))
    assert bench.held.by_token[delivery.token].asked is None
    gate.open()
    await bench.all_done()
    assert await app.result(job).get(timeout=30) == 1


async def test_runs_leave_no_work_for_the_garbage_collector(app: App) -> None:
    """It would find a cycle of references in the end. But finding one for each job takes CPU time of the worker."""

    @app.task
    async def travel() -> str:
        return current_job().id

    async def travel_often() -> None:
        for _ in range(20):
            await (await travel.delay()).get(timeout=30)

    async with running(app):
        await travel_often()  # what is made only once, is made in the context of an early job
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await travel_often()
            gc.collect()
            assert [found for found in gc.garbage if isinstance(found, JobContext)] == []
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
