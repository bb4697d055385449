"""Routing: which queue a job goes to, and which workers take it from there."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from structlog.testing import capture_logs

from fennelq import App, AsyncTask, ConfigurationError, Status, current_job
from fennelq.model.job import Priority
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.serving import warn_of_unfollowed_routes
from tests.features.conftest import MakeApp
from tests.kit.waiting import aeventually
from tests.kit.workers import running


async def burst(app: App, queues: str | None = None, concurrency: int = 1) -> None:
    """A worker that runs everything in these queues."""
    async with asyncio.timeout(30):
        await Executor(app, ExecutorConfig(concurrency=concurrency, queues=queues, burst=True)).run()


def noting(app: App, name: str, ran: list[str], queue: str | None = None) -> AsyncTask[[], None]:
    """A task that notes its name when it runs."""

    async def note() -> None:
        ran.append(name)

    return app.task(name=name, queue=queue)(note) if queue else app.task(name=name)(note)


# Which queue


async def test_a_call_overrides_the_task_which_overrides_the_route_which_overrides_the_app(
    make_app: MakeApp,
) -> None:
    app = make_app(default_queue="usual")
    app.route("shop.images.*", queue="gpu")
    plain, named = noting(app, "shop.mail:send", []), noting(app, "shop.images:crop", [], queue="crops")
    routed = noting(app, "shop.images:resize", [])
    queues = [task.job().queue for task in (plain, routed, named, named.options(queue="now"))]
    assert queues == ["usual", "gpu", "crops", "now"]
    assert routed.options(queue="now", priority="high").job().queue == "now"
    assert [task.queue for task in (plain, routed, named)] == ["usual", "gpu", "crops"]


async def test_a_route_counts_however_a_job_is_sent(app: App) -> None:
    app.route("shop.images.*", queue="gpu")
    resize = noting(app, "shop.images:resize", [])
    results = [
        await resize.delay(),
        (await app.enqueue([resize.job()]))[0],
        await app.send("shop.images:resize"),
    ]
    with pytest.warns(UserWarning, match="no task 'shop.images.elsewhere:only' is registered"):
        results.append(await app.send("shop.images.elsewhere:only"))
    assert {result.id.partition(":")[0] for result in results} == {"gpu"}
    assert (await app.queues.info("gpu")).waiting == 4
    assert (await asyncio.to_thread(resize.sync.delay)).id.startswith("gpu:")
    await app.queues.purge("gpu")


async def test_a_route_may_come_after_its_tasks_their_options_and_their_schedules(app: App) -> None:
    resize = noting(app, "shop.images:resize", [])
    urgent = resize.options(priority="high")
    nightly = resize.every(3600, name="nightly")
    resize.options(queue="own").every(3600, name="own")
    assert (resize.queue, nightly.queue) == ("default", "default")
    app.route("shop.images.*", queue="gpu")
    assert [resize.job().queue, urgent.job().queue] == ["gpu", "gpu"]
    schedules = app.declared.schedules
    assert {name: schedule.queue for name, schedule in schedules.items()} == {"nightly": "gpu", "own": "own"}


async def test_a_job_that_was_sent_stays_in_its_queue_when_the_routes_change(
    app: App, make_app: MakeApp
) -> None:
    ran: list[str] = []
    before = await noting(app, "shop.images:resize", ran).delay()
    later = make_app()
    later.route("shop.images.*", queue="gpu")
    noting(later, "shop.images:resize", ran)
    await burst(later, "gpu")
    assert (ran, await before.status()) == ([], Status.SENT)
    await burst(later)
    assert (ran, await before.status()) == (["shop.images:resize"], Status.SUCCESS)


def test_routes_that_match_a_task_equally_are_refused_where_the_second_of_the_three_is_written() -> None:
    app = App("shop")
    app.route("shop.*.ab", queue="one")
    app.route("shop.a.*b", queue="two")
    sentence = r"^task 'shop.a:ab' matches two routes equally, 'shop.\*.ab' \(queue 'one'\) and 'shop.a.\*b'"
    with pytest.raises(ConfigurationError, match=sentence):
        noting(app, "shop.a:ab", [])
    assert "shop.a:ab" not in app.tasks
    noting(app, "shop.a:ab", [], queue="own")
    other = App("shop")
    noting(other, "shop.a:ab", [])
    other.route("shop.*.ab", queue="one")
    with pytest.raises(ConfigurationError, match=sentence):
        other.route("shop.a.*b", queue="two")
    assert other.tasks["shop.a:ab"].queue == "one"


def test_a_route_that_no_task_follows_is_a_warning_when_a_worker_starts() -> None:
    app = App("shop")
    noting(app, "shop.mail:send", [], queue="mail")
    noting(app, "shop.images:resize", [])
    for pattern, queue in (("shop.images.*", "gpu"), ("shop.image.*", "slow"), ("shop.images", "slow")):
        app.route(pattern, queue=queue)
    with capture_logs() as logged:
        warn_of_unfollowed_routes(app)
    shared = {"event": "route_unused", "log_level": "warning", "queue": "slow"}
    assert logged == [
        {**shared, "pattern": pattern, "why": f"it matches no task: did you mean {hint!r}?"}
        for pattern, hint in (("shop.image.*", "shop.images:resize"), ("shop.images", "shop.images.*"))
    ]


# Recipes


async def test_workers_with_and_without_a_gpu_share_the_jobs_that_need_none(app: App) -> None:
    ran: list[str] = []
    app.route("ml.train.*", queue="gpu")
    app.route("ml.prepare.*", queue="cpu")
    app.route("ml.*", queue="any")
    train, prepare = noting(app, "ml.train:epoch", ran), noting(app, "ml.prepare:clean", ran)
    embed = noting(app, "ml.embed:text", ran)

    async def send() -> None:
        await app.enqueue([embed.job(), train.job(), prepare.job(), embed.job()])

    await send()
    await burst(app, "cpu,any")
    assert ran == ["ml.prepare:clean", "ml.embed:text", "ml.embed:text"]
    await send()
    ran.clear()
    await burst(app, "gpu,any")
    assert ran == ["ml.train:epoch", "ml.train:epoch", "ml.embed:text", "ml.embed:text"]
    await app.queues.purge("cpu")


async def test_a_region_runs_its_own_jobs_and_another_region_helps_when_it_has_none(app: App) -> None:
    ran: list[str] = []

    @app.task(name="shop:order")
    async def order(region: str) -> None:
        ran.append(f"{current_job().queue} {region}")

    async def send() -> None:
        for region in ("us", "eu", "us", "eu"):
            await order.options(queue=f"orders.{region}").delay(region)

    await send()
    await burst(app, "*.eu")
    assert ran == ["orders.eu eu"] * 2
    await send()
    ran.clear()
    await burst(app, "*.eu,*.us")
    assert ran == ["orders.eu eu"] * 2 + ["orders.us us"] * 4


# Shares


async def test_weights_are_shares_of_the_jobs_taken(app: App) -> None:
    """Within 5 %, at 32 jobs per fetch; `worker/test_hot.py` shows it for 10,000 jobs and other weights."""
    order: list[str] = []

    @app.task(name="shop:note")
    async def note() -> None:
        order.append(current_job().queue)

    await app.enqueue([note.options(queue="mail").job() for _ in range(1600)])
    await app.enqueue([note.options(queue="reports").job() for _ in range(600)])
    await burst(app, "mail:3,reports:1", concurrency=32)
    share = Counter(order[:2000])
    assert share["mail"] / 2000 == pytest.approx(0.75, rel=0.05)
    assert share["reports"] / 2000 == pytest.approx(0.25, rel=0.05)
    assert len(order) == 2200  # and no slot stayed empty for the sake of a share


# Priorities


async def test_with_one_slot_free_no_lower_job_starts_while_a_higher_one_waits(app: App) -> None:
    """The first of these jobs wakes a sleeping executor; the others are there when it asks."""
    order: list[str] = []

    @app.task(name="shop:note")
    async def note() -> None:
        order.append(current_job().id)

    ranks: dict[Priority, int] = {"high": 0, "normal": 1, "low": 2}
    async with running(app, concurrency=1) as executor:
        for first in ranks:
            await aeventually(executor.consumer.drained.is_set)
            order.clear()
            lanes: list[Priority] = [first, "low", "normal", "high"]
            jobs = [note.options(priority=lane).job() for lane in lanes]
            results = await app.enqueue(jobs)
            await asyncio.gather(*(result.get(timeout=30) for result in results))
            places = sorted(range(4), key=lambda place: (ranks[lanes[place]], place))
            assert order == [jobs[place].id for place in places]
