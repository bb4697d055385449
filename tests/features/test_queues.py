"""Queues and priorities: what a worker serves, and in which order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fennelq import App, ConfigurationError, Job, Status, Task
from fennelq.manage.queues import queues
from fennelq.model.job import Priority
from fennelq.model.routing import Routing
from tests.features.conftest import MakeApp
from tests.kit.apps import LocalApp
from tests.kit.waiting import aeventually
from tests.kit.workers import running


class Sequence:
    """Jobs that note the order in which they run."""

    def __init__(self, app: App) -> None:
        self.order: list[str] = []

        @app.task(name="shop:note")
        async def note(name: str) -> None:
            self.order.append(name)

        self.note: Task[[str], None] = note

    def jobs(self, queue: str, number: int) -> list[Job[None]]:
        return [self.note.options(queue=queue).job(queue) for _ in range(number)]


async def run_all(
    app: App, jobs: Iterable[Job[None]], queues: str | None = None, concurrency: int = 1
) -> None:
    """Send all, then let a worker come."""
    results = await app.enqueue(jobs)
    async with running(app, concurrency=concurrency, queues=queues):
        await asyncio.gather(*(result.get(timeout=30) for result in results))


# Priorities


async def test_what_is_urgent_runs_first(app: App) -> None:
    seq = Sequence(app)
    priorities: list[Priority] = ["low", "normal", "high"]
    jobs = [seq.note.options(priority=p).job(f"{p}-{n}") for n in range(3) for p in priorities]
    await run_all(app, jobs)
    assert seq.order == [f"{p}-{n}" for p in reversed(priorities) for n in range(3)]


async def test_within_a_priority_jobs_run_in_the_order_they_were_sent_in(app: App) -> None:
    seq = Sequence(app)
    await run_all(app, [seq.note.job(str(n)) for n in range(50)])
    assert seq.order == [str(n) for n in range(50)]


async def test_an_urgent_job_overtakes_those_that_wait_while_the_worker_is_busy(app: App) -> None:
    seq = Sequence(app)
    may_end = asyncio.Event()

    @app.task
    async def block() -> None:
        await may_end.wait()

    async with running(app, concurrency=1):
        blocker = await block.delay()
        await aeventually(lambda: is_executing(app, blocker.id))
        results = await app.enqueue([seq.note.job("normal") for _ in range(20)])
        results += [await seq.note.options(priority="high").delay("high")]
        may_end.set()
        await asyncio.gather(*(result.get(timeout=30) for result in results))
    assert seq.order[0] == "high"


async def test_a_worker_may_serve_some_priorities_only(app: App) -> None:
    seq = Sequence(app)
    low = await seq.note.options(priority="low").delay("low")
    high = await seq.note.options(priority="high").delay("high")
    async with running(app, priorities=["high", "normal"]):
        await high.get(timeout=30)
        await (await seq.note.delay("normal")).get(timeout=30)
        assert await low.status() is Status.SENT
    async with running(app, priorities=["low"]):
        await low.get(timeout=30)


# Queues


async def test_named_queues_are_served_strictly_in_their_order(app: App) -> None:
    seq = Sequence(app)
    jobs = [*seq.jobs("mail", 10), *seq.jobs("urgent", 10), *seq.jobs("reports", 10)]
    await run_all(app, jobs, queues="urgent,mail,reports")
    assert seq.order == ["urgent"] * 10 + ["mail"] * 10 + ["reports"] * 10


async def test_weighted_queues_get_their_share(app: App) -> None:
    seq = Sequence(app)
    jobs = [*seq.jobs("mail", 300), *seq.jobs("reports", 300)]
    await run_all(app, jobs, queues="mail:3,reports:1")
    share = Counter(seq.order[:200])
    assert 120 <= share["mail"] <= 180, share
    assert share["reports"] >= 20, share


async def test_without_a_word_every_queue_of_the_app_is_served_with_equal_weight(app: App) -> None:
    @app.task(queue="mail")
    async def other() -> None: ...

    @app.task(queue="reports")
    async def another() -> None: ...

    seq = Sequence(app)
    jobs = [*seq.jobs("mail", 200), *seq.jobs("reports", 200), *seq.jobs("default", 200)]
    await run_all(app, jobs)
    share = Counter(seq.order[:200])
    assert set(share) == {"mail", "reports", "default"}
    assert min(share.values()) >= 30, share


async def test_a_queue_that_is_not_named_is_left_alone(app: App) -> None:
    seq = Sequence(app)
    (left_alone,) = await app.enqueue(seq.jobs("reports", 1))
    await run_all(app, seq.jobs("mail", 3), queues="mail")
    assert seq.order == ["mail"] * 3
    assert await left_alone.status() is Status.SENT


async def test_a_new_queue_is_discovered(app: App, make_app: MakeApp) -> None:
    """By a worker that serves every queue, before and after its start."""
    seq = Sequence(app)
    caller = make_app()
    early = await caller.send("shop:note", "early", queue="seen.before")
    async with running(app):
        await early.get(timeout=30)
        late = await caller.send("shop:note", "late", queue="seen.later")
        await late.get(timeout=30)
    assert seq.order == ["early", "late"]


async def test_jobs_sent_before_any_worker_has_ever_existed_run(app: App) -> None:
    seq = Sequence(app)
    await run_all(app, seq.jobs("brand-new", 10), queues="brand-new")
    assert len(seq.order) == 10


async def test_after_a_flush_new_jobs_run_again(app: App) -> None:
    from fennelq.broker.verb import Command

    seq = Sequence(app)
    async with running(app):
        await (await seq.note.delay("before")).get(timeout=30)
        await app.client.ask(Command(["FLUSHALL"], bytes))
        await (await seq.note.delay("after")).get(timeout=30)
    assert seq.order == ["before", "after"]


async def test_two_apps_on_one_redis_do_not_see_each_other(make_app: MakeApp) -> None:
    shop, other = make_app("shop"), make_app("other")
    shops, others = Sequence(shop), Sequence(other)
    ours, theirs = await shops.note.delay("ours"), await others.note.delay("theirs")
    async with running(shop):
        await ours.get(timeout=30)
        assert await theirs.status() is Status.SENT
    assert (shops.order, others.order) == (["ours"], [])
    assert await shop.result(theirs.id).status() is Status.UNKNOWN


async def test_apps_of_one_namespace_share_their_queues(make_app: MakeApp) -> None:
    seq = Sequence(make_app("worker", namespace="common"))
    caller = make_app("web", namespace="common")
    result = await caller.send("shop:note", "hello")
    async with running(seq.note.app):
        await result.get(timeout=30)
    assert seq.order == ["hello"]


@pytest.mark.parametrize("queues", ["a{b}", "mail:0", "mail:", "a b", ",", "mail:x"])
def test_queues_that_cannot_be_read_are_refused(queues: str) -> None:
    with pytest.raises(ConfigurationError):
        Routing.parse(queues)


async def test_many_workers_share_a_queue_without_running_anything_twice(app: App) -> None:
    seq = Sequence(app)
    async with AsyncExitStack() as workers:
        for _ in range(4):
            await workers.enter_async_context(running(app, concurrency=4))
        results = await app.enqueue([seq.note.job(str(n)) for n in range(500)])
        await asyncio.gather(*(result.get(timeout=30) for result in results))
    assert Counter(seq.order) == Counter(str(n) for n in range(500))


async def is_executing(app: App, job_id: str) -> bool:
    return await app.result(job_id).status() is Status.EXECUTING


# Looking at queues


@pytest.mark.parametrize("place", ["nope", "", None])
async def test_peeking_at_a_place_that_does_not_exist_names_those_that_do(app: App, place: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not one of waiting, scheduled, retry"):
        await app.queues.peek("default", place=place)


@pytest.mark.parametrize("order", ["nope", None])
async def test_an_order_of_dead_jobs_that_does_not_exist_names_those_that_do(app: App, order: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not one of newest, oldest"):
        await app.dlq.list(order=order)


def test_looking_at_many_queues_sends_no_more_at_once_than_looking_at_a_page_of_them(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server answers one client at a time: a round trip for thousands of queues would keep all others waiting."""
    monkeypatch.setattr(queues, "QUEUES_AT_ONCE", 2)
    app = LocalApp("shop", redis_url=redis_url)

    @app.task(name="shop:note")
    def note(name: str) -> None: ...

    sizes: list[int] = []
    run_each = app.blocking.run_each

    def counted(steps: Any, *args: Any) -> Any:
        sizes.append(len(steps))
        return run_each(steps, *args)

    monkeypatch.setattr(app.blocking, "run_each", counted)
    most: list[int] = []
    with app.sync:
        for number in (2, 9):
            app.sync.enqueue([note.options(queue=f"q{i}").job("x") for i in range(number)])
            sizes.clear()
            infos = {info.name: info.waiting for info in app.sync.queues.list()}
            assert infos.keys() == {"default", *(f"q{i}" for i in range(number))}
            most.append(max(sizes))
    assert most[0] == most[1]
