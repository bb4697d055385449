"""`app.operations`: acts on all jobs that meet a filter. An operation outlives the process that performs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from anyio import to_thread

from fennelq import (
    App,
    AsyncResult,
    ConfigurationError,
    InvalidFilter,
    Limit,
    OperationBusy,
    OperationInfo,
    OperationPlan,
    Status,
    UnknownOperation,
)
from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.broker.talk import Found
from fennelq.broker.verb import Command
from fennelq.broker.verbs.search import Hit
from fennelq.manage import acting
from fennelq.manage.finding import Page, Search
from fennelq.manage.pace import Pace
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

pytestmark = pytest.mark.audit(unfinished=True)
JOBS = 23


class Shop:
    """Jobs in two queues. The keys of the jobs are the same in both."""

    def __init__(self, app: App, server: Server) -> None:
        self.app, self.server, self.gate = app, server, asyncio.Event()

        @app.task(name="shop:work")
        async def work(number: int) -> None:
            await self.gate.wait()

        @app.task(name="shop:mail", queue="mail")
        async def mail(number: int) -> None: ...

        self.work, self.mail = work, mail

    async def fill(self, **options: Any) -> list[AsyncResult[None]]:
        """The jobs of the queue `mail`; those of `default` have the same keys."""
        await self.app.enqueue([self.work.options(job_id=f"j{n}", **options).job(n) for n in range(JOBS)])
        return await self.app.enqueue(
            [self.mail.options(job_id=f"j{n}", **options).job(n) for n in range(JOBS)]
        )

    async def begun(self, where: str, act: Any = "cancel", **given: Any) -> OperationInfo:
        return await self.app.operations.begin(await self.app.operations.plan(act, where), **given)

    async def done(self, where: str, act: Any = "cancel", **given: Any) -> OperationInfo:
        return await self.app.operations.resume((await self.begun(where, act, **given)).id)

    async def statuses(self, queue: str) -> dict[Status, int]:
        found = dict[Status, int]()
        for number in range(JOBS):
            status = await self.app.result(f"{queue}:j{number}").status()
            found[status] = found.get(status, 0) + 1
        return found

    def cancelled(self, queue: str) -> int:
        """How often a job of the queue was cancelled."""
        with self.server.client() as client:
            counted: Any = client.hget(queue_keys("shop", queue)["stats"], "K")
        return int(counted or 0)

    def silence(self, operation: str) -> None:
        """As if its performer had reported long ago."""
        with self.server.client() as client:
            client.hset(AppKeys("shop").operation(operation), "beat", "1")


@pytest.fixture
def shop(app: App, server: Server, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop whose operations take many steps."""
    monkeypatch.setattr(acting, "MOST_JOBS", 5)
    return Shop(app, server)


# What an operation does


async def test_an_operation_cancels_the_jobs_that_meet_its_filter_and_no_others(shop: Shop) -> None:
    results = await shop.fill()
    ended = await shop.done("queue:mail", reason="the shop is closed")
    assert (ended.state, ended.done, ended.total, ended.passed) == ("done", JOBS, JOBS, 0)
    assert ended.ended is not None
    assert await shop.statuses("mail") == {Status.CANCELLED: JOBS}
    assert await shop.statuses("default") == {Status.SENT: JOBS}
    info = await results[0].info()
    assert info is not None
    assert info.reason == "the shop is closed"


async def test_an_operation_runs_jobs_now_that_are_due_later(shop: Shop) -> None:
    await shop.fill(delay=600)
    ended = await shop.done("queue:mail", "run")
    assert (ended.state, ended.done, ended.act) == ("done", JOBS, "run")
    assert await shop.statuses("mail") == {Status.SENT: JOBS}
    assert await shop.statuses("default") == {Status.SCHEDULED: JOBS}
    assert (await shop.done("queue:mail", "run")).done == 0


async def test_a_single_job_runs_now(shop: Shop) -> None:
    [result] = await shop.app.enqueue([shop.mail.options(delay=600).job(1)])
    assert tuple(await shop.app.jobs.run(result.id)) == (result.id, True, "due now", True)
    assert tuple(await shop.app.jobs.run(result.id)) == (result.id, False, "not due later: SENT", True)
    assert not (await shop.app.jobs.run("mail:unknown")).known


async def test_a_plan_counts_the_jobs_and_shows_some_and_changes_nothing(shop: Shop) -> None:
    await shop.fill()
    plan = await shop.app.operations.plan("cancel", "queue:mail since:1h")
    assert (plan.act, plan.total, len(plan.samples)) == ("cancel", JOBS, 5)
    assert {job.queue for job in plan.samples} == {"mail"}
    assert "state:waiting" in plan.where
    assert "state:dead" not in plan.where
    assert abs(plan.until - datetime.now(UTC)) < timedelta(minutes=5)
    assert await shop.app.operations.list() == []
    assert await shop.statuses("mail") == {Status.SENT: JOBS}


async def test_a_plan_says_which_jobs_are_left_alone_because_the_clock_was_set_back(
    shop: Shop, server: Server
) -> None:
    """A list shows them, but by the clock they are sent after the plan."""
    await shop.fill()
    with server.client() as client:
        for number in range(3):
            client.hset(queue_keys("shop", "mail").record(f"j{number}"), "c", 2**45)
    plan = await shop.app.operations.plan("cancel", "queue:mail -99")
    assert (plan.total, plan.problem.count("(3)")) == (JOBS - 3, 1)
    assert "clock of the server was set back" in plan.problem
    assert await shop.app.jobs.count("queue:mail -99") == JOBS
    # Those that the filter leaves out anyway are not counted.
    assert (await shop.app.operations.plan("cancel", "queue:default task:mail")).problem == ""


async def test_an_operation_does_nothing_while_the_clock_is_before_its_plan(
    shop: Shop, server: Server
) -> None:
    """Jobs that were sent after the plan have times before it, so it could not leave them alone."""
    await shop.fill()
    begun = await shop.begun("queue:mail")
    operation = AppKeys("shop").operation(begun.id)
    with server.client() as client:
        until: Any = client.hget(operation, "until")
        client.hset(operation, "until", 2**45)
        ended = await shop.app.operations.resume(begun.id)
        assert (ended.state, ended.done) == ("failed", 0)
        assert "clock of the server was set back to before the plan" in ended.problem
        assert await shop.statuses("mail") == {Status.SENT: JOBS}
        client.hset(operation, "until", until)
    assert (await shop.app.operations.resume(begun.id)).done == JOBS


async def test_with_a_limit_so_many_jobs_are_done_and_no_more(shop: Shop) -> None:
    await shop.fill()
    ended = await shop.done("queue:mail", limit=7)
    assert (ended.state, ended.done, ended.total, ended.limit) == ("done", 7, 7, 7)
    assert await shop.statuses("mail") == {Status.CANCELLED: 7, Status.SENT: JOBS - 7}


async def test_jobs_that_are_sent_after_the_plan_are_left_alone(shop: Shop) -> None:
    await shop.fill()
    begun = await shop.begun("queue:mail")
    moment = begun.until

    async def is_past() -> bool:
        return (await shop.app.operations.plan("cancel", "queue:nothing")).until > moment

    await aeventually(is_past)
    late = await shop.mail.delay(99)
    later = await shop.mail.options(delay=600).delay(99)
    assert (await shop.app.operations.resume(begun.id)).done == JOBS
    assert [await late.status(), await later.status()] == [Status.SENT, Status.SCHEDULED]


async def test_jobs_that_come_to_a_lane_after_the_plan_are_not_those_that_waited(shop: Shop) -> None:
    [later] = await shop.app.enqueue([shop.mail.options(delay=600).job(1)])
    begun = await shop.begun("state:waiting queue:mail")

    async def is_past() -> bool:
        return (await shop.app.operations.plan("cancel", "queue:nothing")).until > begun.until

    await aeventually(is_past)
    await shop.app.jobs.run(later.id)
    assert (await shop.app.operations.resume(begun.id)).done == 0
    assert await later.status() is Status.SENT


async def test_jobs_that_begin_to_run_after_the_plan_are_left_alone_by_a_filter_for_waiting_ones(
    shop: Shop,
) -> None:
    await shop.fill()
    waiting, every = await shop.begun("state:waiting queue:default"), await shop.begun("queue:default")
    async with running(shop.app, queues="default", concurrency=2 * JOBS):

        async def all_run() -> bool:
            return await shop.statuses("default") == {Status.EXECUTING: JOBS}

        await aeventually(all_run)
        ended = await shop.app.operations.resume(waiting.id)
        assert (ended.state, ended.done) == ("done", 0)
        infos = [await shop.app.jobs.info(f"default:j{n}") for n in range(JOBS)]
        assert [info and info.stopping for info in infos] == [None] * JOBS
        assert (await shop.app.operations.resume(every.id)).done == JOBS
        shop.gate.set()


async def test_a_job_that_begins_between_the_search_and_the_act_is_passed_over(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The act checks the state again: here every job has begun when it is acted on."""
    await shop.fill()
    begun = await shop.begun("state:waiting queue:default", limit=5)
    act = verbs.jobs.cancel
    async with running(shop.app, queues="default", concurrency=2 * JOBS):

        async def all_run() -> bool:
            return await shop.statuses("default") == {Status.EXECUTING: JOBS}

        await aeventually(all_run)
        asked = list[int]()

        def noted(*args: Any) -> Any:
            asked.append(len(args[1]))
            return act(*args)

        monkeypatch.setattr(verbs.jobs, "cancel", noted)
        monkeypatch.setattr(acting, "Search", Stale)
        ended = await shop.app.operations.resume(begun.id)
        assert asked == [1]
        assert (ended.done, ended.passed) == (0, 1)
        info = await shop.app.jobs.info("default:j0")
        assert info is not None
        assert info.stopping is None
        shop.gate.set()


async def test_with_a_limit_others_take_the_places_of_jobs_that_have_moved_on_meanwhile(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All jobs are in one page of the search, and the first of them are cancelled before the act."""
    await shop.fill()
    begun = await shop.begun("queue:mail", limit=7)
    for number in range(5):
        await shop.app.result(f"mail:j{number}").cancel()
    monkeypatch.setattr(acting, "Search", EveryJob)
    ended = await shop.app.operations.resume(begun.id)
    assert (ended.state, ended.done, ended.passed) == ("done", 7, 5)
    assert await shop.statuses("mail") == {Status.CANCELLED: 12, Status.SENT: JOBS - 12}


async def test_with_a_limit_an_error_ends_the_queue_and_not_only_a_part_of_its_page(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.fill()
    begun, asked = await shop.begun("queue:mail", limit=7), list[int]()

    def refused(*args: Any) -> Any:
        asked.append(len(args[1]))
        return Command(["FCALL", "refused", 0], int)

    monkeypatch.setattr(verbs.jobs, "cancel", refused)
    monkeypatch.setattr(acting, "Search", EveryJob)
    ended = await shop.app.operations.resume(begun.id)
    assert (ended.state, ended.done, asked) == ("failed", 0, [7])


class EveryJob(Search):
    """A search that has found every job of the queue in one page."""

    def pages(self) -> Any:
        yield Found(Page(queue_keys("shop", "mail"), [Hit(f"j{n}", "0-0") for n in range(JOBS)]))


class Stale(Search):
    """A search whose hit has moved on since."""

    def pages(self) -> Any:
        yield Found(Page(queue_keys("shop", "default"), [Hit("j0", "0-0")]))


# It outlives its performer


def in_thread(shop: Shop, operation: str, progress: Callable[[int], None]) -> Any:
    return to_thread.run_sync(lambda: shop.app.sync.operations.resume(operation, progress))


class Killed(Exception):
    """The performer is gone."""


@pytest.mark.parametrize("step", [1, 2, 3, 5])
async def test_an_operation_whose_performer_was_killed_is_resumed(shop: Shop, step: int) -> None:
    await shop.fill()
    begun, seen = await shop.begun("queue:mail"), list[int]()

    def killed(done: int) -> None:
        seen.append(done)
        if len(seen) == step:
            raise Killed

    with pytest.raises(Killed):
        await in_thread(shop, begun.id, killed)
    with pytest.raises(OperationBusy, match="is being performed by"):
        await shop.app.operations.resume(begun.id)
    shop.silence(begun.id)
    ended = await shop.app.operations.resume(begun.id)
    assert (ended.state, ended.done) == ("done", JOBS)
    assert shop.cancelled("mail") == JOBS
    assert shop.cancelled("default") == 0


@pytest.mark.parametrize("step", [1, 2, 4])
async def test_an_operation_is_stopped_between_two_steps_and_resumed(shop: Shop, step: int) -> None:
    await shop.fill()
    begun, seen = await shop.begun("queue:mail"), list[int]()

    def stopping(done: int) -> None:
        seen.append(done)
        if len(seen) == step:
            assert shop.app.sync.operations.stop(begun.id).state == "stopped"

    stopped = await in_thread(shop, begun.id, stopping)
    assert stopped.state == "stopped"
    # The step that was under way is done; it is reported when the operation goes on.
    assert shop.cancelled("mail") == min(JOBS, 5 * (step + 1))
    ended = await shop.app.operations.resume(begun.id)
    assert ended.state == "done"
    assert shop.cancelled("mail") == JOBS
    assert JOBS - 5 <= ended.done <= JOBS


async def test_two_performers_at_once_do_no_harm(shop: Shop) -> None:
    await shop.fill()
    begun = await shop.begun("queue:mail")
    resume = shop.app.operations.resume
    ends = await asyncio.gather(resume(begun.id), resume(begun.id), return_exceptions=True)
    assert [type(end) for end in ends if isinstance(end, Exception)] == [OperationBusy]
    assert shop.cancelled("mail") == JOBS


async def test_a_performer_that_comes_back_learns_that_another_one_goes_on(shop: Shop) -> None:
    await shop.fill()
    begun, seen, others = await shop.begun("queue:mail"), list[int](), list[OperationInfo]()

    def taken_over(done: int) -> None:
        seen.append(done)
        if len(seen) == 2:
            shop.silence(begun.id)
            others.append(shop.app.sync.operations.resume(begun.id))

    mine = await in_thread(shop, begun.id, taken_over)
    assert mine == others[0]
    assert (mine.state, mine.done) == ("done", JOBS)
    assert shop.cancelled("mail") == JOBS


async def test_an_operation_that_is_done_is_not_done_again(shop: Shop) -> None:
    await shop.fill()
    ended = await shop.done("queue:mail")
    assert await shop.app.operations.resume(ended.id) == ended
    assert await shop.app.operations.stop(ended.id) == ended


async def test_running_jobs_that_are_asked_twice_to_stop_stop_once(shop: Shop) -> None:
    await shop.fill()
    async with running(shop.app, queues="default", concurrency=2 * JOBS):

        async def all_run() -> bool:
            return await shop.statuses("default") == {Status.EXECUTING: JOBS}

        await aeventually(all_run)
        ended = await shop.done("state:running")
        again = await shop.done("state:running")

        async def all_cancelled() -> bool:
            return await shop.statuses("default") == {Status.CANCELLED: JOBS}

        await aeventually(all_cancelled)
    assert ended.done == JOBS
    assert again.state == "done"
    assert shop.cancelled("default") == JOBS


# Looking at operations


async def test_operations_are_listed_the_newest_first(shop: Shop) -> None:
    await shop.fill()
    first = await shop.begun("queue:mail", who="anna@web-1")

    async def is_past() -> bool:
        return (await shop.begun("queue:nothing", "run")).begun > first.begun

    await aeventually(is_past)
    listed = await shop.app.operations.list()
    assert listed[-1] == first
    assert listed[-1].who == "anna@web-1"
    assert [one.act for one in listed[:-1]] == ["run"] * (len(listed) - 1)
    assert await shop.app.operations.list(limit=1) == listed[:1]
    assert await shop.app.operations.get(first.id) == first
    assert await shop.app.operations.get("unknown") is None


async def test_without_an_event_loop_operations_work_alike(shop: Shop) -> None:
    await shop.fill()
    operations = shop.app.sync.operations

    def act() -> OperationInfo:
        plan: OperationPlan = operations.plan("cancel", "queue:mail")
        return operations.resume(operations.begin(plan).id)

    assert (await to_thread.run_sync(act)).done == JOBS
    assert await to_thread.run_sync(operations.list) == await shop.app.operations.list()


WRONG: list[tuple[str, str, type[Exception], str]] = [
    ("cancel", "", InvalidFilter, "an empty filter selects every job of the app"),
    ("cancel", "state:dead", InvalidFilter, "jobs in state dead cannot be cancelled, only limited"),
    ("run", "state:waiting", InvalidFilter, "jobs in state waiting cannot be run now, only retry, scheduled"),
    ("run", "-state:retry -state:scheduled", InvalidFilter, "leaves no job that can be run now"),
    ("cancel", "mail:order-17", InvalidFilter, "name these jobs by their ids"),
    ("cancel", "taks:x", InvalidFilter, "did you mean 'task'"),
    ("burn", "task:x", ConfigurationError, "act 'burn' is not one of cancel, run"),
]


@pytest.mark.parametrize(("act", "where", "error", "text"), WRONG)
async def test_a_wrong_operation_is_refused(
    shop: Shop, act: Any, where: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        await shop.app.operations.plan(act, where)


async def test_every_job_is_an_operation_only_if_that_is_asked_for(shop: Shop) -> None:
    await shop.fill()
    plan = await shop.app.operations.plan("cancel", "", everything=True)
    assert plan.total == 2 * JOBS


async def test_an_unknown_operation_is_an_error(shop: Shop) -> None:
    for call in (shop.app.operations.resume, shop.app.operations.stop):
        with pytest.raises(UnknownOperation, match="no operation 'x': `fennelq op list`"):
            await call("x")
        with pytest.raises(ConfigurationError, match="operation 'a b' is not valid"):
            await call("a b")


async def test_an_act_of_a_later_version_is_left_to_it(shop: Shop, server: Server) -> None:
    begun = await shop.begun("queue:mail")
    with server.client() as client:
        client.hset(AppKeys("shop").operation(begun.id), "act", "burn")
    with pytest.raises(InvalidFilter, match="only a later version of fennelq can perform 'burn'"):
        await shop.app.operations.resume(begun.id)
    assert [one.act for one in await shop.app.operations.list()] == ["burn"]


@pytest.mark.audit(skip="a record is damaged by hand")
async def test_a_record_that_was_changed_by_hand_hides_no_other_and_does_no_harm(
    shop: Shop, server: Server
) -> None:
    await shop.fill()
    keys, first, second, third = AppKeys("shop"), *[await shop.begun("queue:mail") for _ in range(3)]
    with server.client() as client:
        client.delete(keys.operation(first.id))
        client.set(keys.operation(first.id), "what?")
        client.hset(
            keys.operation(second.id), mapping={"until": "x", "begun": "9" * 30, "cursor": "{", "done": "-1"}
        )
    listed = {one.id: one for one in await shop.app.operations.list()}
    assert listed.keys() == {second.id, third.id}
    assert (await shop.app.operations.resume(second.id)).done == 0
    assert await shop.statuses("mail") == {Status.SENT: JOBS}
    with server.client() as client:
        client.hdel(keys.operation(second.id), "where")
        client.hset(keys.operation(second.id), mapping={"state": "stopped", "until": "9" * 13})
    with pytest.raises(InvalidFilter, match="has no filter"):
        await shop.app.operations.resume(second.id)
    assert await shop.statuses("mail") == {Status.SENT: JOBS}
    assert (await shop.app.operations.resume(third.id)).done == JOBS


@pytest.mark.audit(skip="a queue is damaged by hand")
async def test_a_damaged_queue_fails_the_operation_and_does_not_stop_the_others(
    shop: Shop, server: Server
) -> None:
    await shop.fill(delay=600)
    scheduled = queue_keys("shop", "default")["sched"]
    with server.client() as client:
        client.rename(scheduled, "aside")
        client.set(scheduled, "what?")
    ended = await shop.done("-task:nothing")
    assert (ended.state, ended.done) == ("failed", JOBS)
    assert "has a problem with queue 'default'" in ended.problem
    assert await shop.statuses("mail") == {Status.CANCELLED: JOBS}
    with server.client() as client:
        client.delete(scheduled)
        client.rename("aside", scheduled)
    resumed = await shop.app.operations.resume(ended.id)
    assert (resumed.state, resumed.problem, resumed.done) == ("done", "", 2 * JOBS)
    assert await shop.statuses("default") == {Status.CANCELLED: JOBS}


async def test_jobs_in_lines_are_acted_on_too(shop: Shop) -> None:
    @shop.app.task(queue="lines", concurrency=Limit(1, key="account"))
    async def charge(account: int) -> None: ...

    await shop.app.enqueue([charge.job(number % 4) for number in range(40)])
    assert (await shop.done("queue:lines")).done == 40


# Dead jobs


async def died(app: App, number: int) -> list[AsyncResult[None]]:
    """So many jobs that have died of one cause."""

    @app.task(name="shop:fails", queue="billing", retries=0)
    async def fails(number: int) -> None:
        raise RuntimeError("no money")

    jobs = await app.enqueue([fails.job(n) for n in range(number)])
    async with running(app):
        await aeventually(lambda: are_dead(app, number))
    return jobs


async def are_dead(app: App, number: int) -> bool:
    return await app.dlq.count() == number


async def test_dead_jobs_go_back_by_an_operation_and_later_deaths_stay(app: App) -> None:
    jobs = await died(app, 5)
    later = await app.send("shop:fails", 9, queue="billing")
    plan = await app.operations.plan("replay", "state:dead task:fails")
    assert (plan.act, plan.total, plan.where) == ("replay", 5, "state:dead task:fails")
    async with running(app):  # it was sent before the plan, and dies after it
        await aeventually(lambda: are_dead(app, 6))
    ended = await app.operations.resume((await app.operations.begin(plan)).id)
    assert (ended.state, ended.done, ended.total) == ("done", 5, 5)
    assert {await job.status() for job in jobs} == {Status.SENT}
    assert await later.status() is Status.DEAD


async def test_a_job_that_dies_again_is_not_replayed_twice(app: App) -> None:
    await died(app, 3)
    operation = await app.operations.begin(await app.operations.plan("replay", "state:dead"))
    await app.operations.resume(operation.id)
    async with running(app):
        await aeventually(lambda: are_dead(app, 3))
    again = await app.operations.plan("replay", "state:dead")
    async with running(app):
        first = await app.operations.resume((await app.operations.begin(again)).id)
        await aeventually(lambda: are_dead(app, 3))
    assert first.done == 3
    keys = AppKeys(app.namespace)
    reopened = Command(["HSET", keys.operation(operation.id), "state", "stopped", "cursor", ""], int)
    await app.client.ask(reopened)
    resumed = await app.operations.resume(operation.id)
    assert (resumed.state, resumed.done) == ("done", 3)
    assert await app.dlq.count() == 3


async def test_dead_jobs_are_removed_by_an_operation(app: App) -> None:
    jobs = await died(app, 5)
    plan = await app.operations.plan("purge", "state:dead")
    ended = await app.operations.resume((await app.operations.begin(plan, limit=3)).id)
    assert (ended.state, ended.done) == ("done", 3)
    assert sorted([await job.status() for job in jobs]) == [Status.DEAD] * 2 + [Status.UNKNOWN] * 3


async def test_a_rate_bounds_an_operation_and_is_in_its_record(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    await died(app, 7)
    plan = await app.operations.plan("replay", "state:dead")
    operation = await app.operations.begin(plan, rate=1000)
    assert operation.rate == 1000
    sizes = list[int]()

    def most(self: Pace) -> int:
        return 2

    def done(self: Pace) -> None:
        sizes.append(1)

    monkeypatch.setattr(Pace, "most", property(most))
    monkeypatch.setattr(Pace, "done", done)
    ended = await app.operations.resume(operation.id)
    assert (ended.done, len(sizes)) == (7, 4)
    with pytest.raises(ConfigurationError, match="rate must be more than 0"):
        await app.operations.begin(plan, rate=0)


async def test_a_performer_that_is_killed_within_a_page_loses_no_job_of_it(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    await died(app, 6)
    operation = await app.operations.begin(await app.operations.plan("replay", "state:dead"), rate=1000)

    def most(self: Pace) -> int:
        return 2

    monkeypatch.setattr(Pace, "most", property(most))
    with pytest.raises(KeyboardInterrupt):
        await app.operations.resume(operation.id, progress=interrupt_at(4))
    assert await app.dlq.count() == 2
    await app.operations.stop(operation.id)
    ended = await app.operations.resume(operation.id)
    assert (ended.state, ended.done) == ("done", 6)
    assert await app.dlq.count() == 0


def interrupt_at(number: int) -> Callable[[int], None]:
    def progress(done: int) -> None:
        if done >= number:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("act", ["replay", "purge"])
async def test_only_dead_jobs_are_replayed_and_removed(app: App, act: Any) -> None:
    with pytest.raises(InvalidFilter, match="jobs in state waiting cannot be"):
        await app.operations.plan(act, "state:waiting")
