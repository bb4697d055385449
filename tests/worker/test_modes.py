"""Worker modes: only the queues of some tasks, no jobs at all, no more jobs than a rate allows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from structlog.typing import EventDict

from fennelq import App, ConfigurationError, Status
from fennelq.broker import verbs
from fennelq.broker.broker import Broker
from fennelq.executors import Executors
from fennelq.worker.bus import JobStarted
from fennelq.worker.duties.presence import Presence
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig, lanes_of
from fennelq.worker.running.budget import Budget
from fennelq.worker.running.slots import Slots
from fennelq.worker.serving import routing_of
from tests.broker.desk import Desk, a_job
from tests.kit.apps import LocalApp
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.worker.states import state_of


@asynccontextmanager
async def at_work(app: App, **config: Any) -> AsyncGenerator[Executor]:
    """An executor with this configuration, for the length of the block."""
    executor = Executor(app, ExecutorConfig(grace=5, **config))
    life = asyncio.create_task(executor.run())
    try:
        yield executor
    finally:
        executor.stop()
        await life


# Only some priorities


@pytest.mark.parametrize("text", ["urgent", "high,urgent", "high,", "High"])
def test_an_unknown_lane_is_an_error_that_lists_the_three(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^priority '.*' is not one of high, normal, low$"):
        lanes_of(text)


# Only the queues of some tasks


class Shop:
    """An app whose tasks are named, each with its queue, or None for the routes."""

    def __init__(self, **tasks: str | None) -> None:
        self.app = LocalApp("shop")
        for name, queue in tasks.items():
            self.add(name, queue)

    def add(self, name: str, queue: str | None = None) -> None:
        async def task() -> None: ...

        named = f"shop.{name.replace('_', ':')}"
        self.app.task(name=named, queue=queue)(task) if queue else self.app.task(name=named)(task)

    def queues(self, tasks: str) -> dict[str, int]:
        routing = routing_of(self.app, ExecutorConfig(tasks=tasks))
        assert not routing.every
        assert routing.including({"later"}) == routing
        return dict(routing.weights)

    def refusal(self, tasks: str, **config: Any) -> str:
        with pytest.raises(ConfigurationError) as refused:
            routing_of(self.app, ExecutorConfig(tasks=tasks, **config))
        return str(refused.value)


def test_a_worker_for_some_tasks_serves_the_queues_that_carry_nothing_else() -> None:
    shop = Shop(images_resize=None, images_crop="crops", mail_send=None)
    shop.app.route("shop.images.*", queue="gpu")
    assert shop.queues("shop.images.*") == {"crops": 1, "gpu": 1}
    assert shop.queues("shop.images:crop") == {"crops": 1}
    assert shop.queues("shop.mail:send, shop.images:crop") == {"crops": 1, "default": 1}


def test_tasks_that_share_a_queue_with_it_are_named() -> None:
    shop = Shop(images_resize="gpu", images_crop="gpu", mail_send="gpu", mail_welcome="mail")
    assert shop.refusal("shop.images.*") == (
        "--task shop.images.* needs queues without other tasks, but these use them too: shop.mail:send (queue gpu). "
        "Move the others to another queue, or move shop.images.* to one of its own: "
        'app.route("shop.images.*", queue="…")'
    )
    assert "shop.images:crop (queue gpu), shop.mail:send (queue gpu). Move the" in shop.refusal("*:resize")
    for number in range(19):
        shop.add(f"many_{number}", "gpu")
    assert "shop.many:9 (queue gpu). Move the" in shop.refusal("shop.images.*")
    shop.add("many_more", "gpu")
    assert "shop.many:9 (queue gpu) and 1 more. Move the" in shop.refusal("shop.images.*")


def test_a_route_for_tasks_of_other_programs_counts_as_well() -> None:
    shop = Shop(images_resize="gpu")
    shop.app.route("shop.images.thumbs.*", queue="gpu")
    shop.app.route("other.*", queue="cpu")
    assert shop.queues("shop.images.*") == {"gpu": 1}
    shop.app.route("other.model.*", queue="gpu")
    assert "the route 'other.model.*' (queue 'gpu'). Move the" in shop.refusal("shop.images.*")


def test_a_route_whose_tasks_are_here_is_judged_by_them() -> None:
    shop = Shop(mail_send="mail", images_resize=None)
    shop.app.route("shop.i*", queue="shop")
    assert shop.queues("shop.images.*") == {"shop": 1}


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ("shop.image.*", "--task shop.image.* matches no task: did you mean 'shop.images:resize'?"),
        ("shop.images", "--task shop.images matches no task: did you mean 'shop.images.*'?"),
        ("shop.images.*,nosuch", "--task nosuch matches no task; known: shop.images:resize"),
        ("nosuch,shop.images", "--task nosuch matches no task; known: shop.images:resize"),
        ("", "--task: '' is not a pattern of task names: write shop.images.* or shop.images:resize"),
        ("shop.images.*,", "--task: '' is not a pattern of task names"),
    ],
)
def test_a_pattern_that_matches_no_task_is_refused(tasks: str, sentence: str) -> None:
    assert Shop(images_resize="gpu").refusal(tasks).startswith(sentence)


def test_queues_and_tasks_exclude_each_other() -> None:
    sentence = "-q and --task both choose the queues: pass only one"
    assert Shop(images_resize="gpu").refusal("shop.images.*", queues="gpu") == sentence


async def test_an_executor_checks_this_as_well_because_a_reload_may_have_changed_the_tasks(app: App) -> None:
    app.route("shop.*", queue="shop")
    with pytest.raises(ConfigurationError, match=r"^--task shop.images.\* matches no task"):
        Executor(app, ExecutorConfig(tasks="shop.images.*"))


async def test_an_executor_for_some_tasks_takes_their_jobs_and_leaves_the_others(redis_url: str) -> None:
    async with LocalApp("shop", redis_url=redis_url) as app:

        @app.task(name="shop.images:resize", queue="gpu")
        async def resize() -> str:
            return "small"

        left = await resize.options(queue="elsewhere").delay()
        async with at_work(app, tasks="shop.images.*"):
            assert await (await resize.delay()).get(timeout=30) == "small"
        assert await left.status() is Status.SENT
        await left.cancel()


# No jobs at all


async def test_without_consuming_no_job_starts_and_the_duties_go_on(redis_url: str, desk: Desk) -> None:
    """One job becomes due, the executor of another one has died, and a schedule is due."""
    desk.silent(desk.executing(a_job("dead")), 10**6)
    async with LocalApp("shop", redis_url=redis_url, lease=1, schedule_interval=0.02) as app:

        @app.task(name="app:welcome", queue="mail")
        async def welcome(n: int) -> int:
            return n

        welcome.every(0.05, args=(1,), overlap="skip", name="often")
        later = await welcome.options(delay=0.05).delay(2)
        async with at_work(app, consumes=False) as executor:
            await aeventually(lambda: len(desk.waiting()) == 3 and not desk.pending())
            assert (desk.due(), desk.sleepers()) == ({}, set())
            assert (executor.state.connected, executor.state.held.done) == (True, 0)
        assert await later.status() is Status.SENT
        async with running(app):
            assert await later.get(timeout=30) == 2


async def test_an_executor_that_takes_no_jobs_hears_of_new_queues(redis_url: str) -> None:
    async with LocalApp("shop", redis_url=redis_url, heartbeat_interval=0.05, lease=1) as app:
        async with at_work(app, consumes=False) as executor:
            await aeventually(lambda: executor.state.connected)
            await app.send("shop:later", queue="later")
            await aeventually(lambda: "later" in executor.state.routing.weights)
        await app.queues.purge("later")


async def test_an_executor_that_takes_no_jobs_does_not_enter_the_lifespan(redis_url: str) -> None:
    """It may need what the machine does not have."""

    async def model(app: App) -> AsyncIterator[None]:
        raise OSError("no GPU")
        yield

    async with (
        LocalApp("shop", redis_url=redis_url, lifespan=model) as app,
        at_work(app, consumes=False) as one,
    ):
        await aeventually(lambda: one.state.connected)
        assert not one.lifespan_failed


async def test_an_executor_that_takes_no_jobs_reports_that_it_serves_no_queue(
    broker: Broker, desk: Desk
) -> None:
    state = state_of(broker, desk.keys, config=ExecutorConfig(name="anna", consumes=False, queues="mail"))
    await Presence(state).tick()
    reported = await broker.ask(verbs.executors.known_executors("shop"))
    facts = orjson.loads(reported["anna"])
    assert {name: facts.get(name) for name in ("queues", "concurrency", "consumes", "every_queue")} == {
        "queues": [],
        "concurrency": 0,
        "consumes": False,
        "every_queue": None,
    }
    now_ms = int(facts["beat_ms"])
    because = "the running workers take no jobs (--no-consume); start one with `fennelq worker`"
    assert Executors(reported, now_ms).unserved("mail") == because
    both = {**reported, "berta": orjson.dumps({"beat_ms": now_ms, "queues": ["mail"]})}
    assert Executors(both, now_ms).serving("mail") == ["berta"]


async def test_it_looks_for_due_jobs_every_second_because_no_message_announces_them(broker: Broker) -> None:
    taking, none = (
        state_of(broker, config=ExecutorConfig(name="anna", consumes=consumes)) for consumes in (True, False)
    )
    for state in (taking, none):
        state.note_listening(True)
    assert (taking.longest_sleep, none.longest_sleep) == (3.75, 1.0)


# No more than a rate


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of this process, which stands until a test moves it."""
    moment = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: moment[0])
    return moment


@pytest.mark.parametrize("rate", [1 / 60, 0.5, 10.0, 30.0, 1000.0])
def test_a_rate_is_used_up_and_never_exceeded_in_any_window(now: list[float], rate: float) -> None:
    """Also by a reader that wakes up to 20 ms late, and that finds few jobs at times."""
    budget, chance, taken = Budget(rate), random.Random(3), list[tuple[float, int]]()
    begin, until = now[0], now[0] + max(60.0, 20 / rate)
    while now[0] < until:
        if jobs := budget.left:
            budget.spend(jobs)
            taken.append((now[0], jobs))
        wait = budget.seconds
        assert wait > 0
        now[0] += wait + chance.uniform(0, 0.02)
    total, seconds = sum(jobs for _, jobs in taken), now[0] - begin
    assert seconds * rate * 0.98 - 1 <= total <= 1 + (seconds + 0.1) * rate
    for window in (0.0, 0.5, 7.0):
        for start in range(0, len(taken), 1 + len(taken) // 50):
            first = taken[start][0]
            within = sum(jobs for moment, jobs in taken[start:] if moment <= first + window)
            assert within <= 1 + (window + 0.1) * rate + 1e-6


def test_what_a_rate_allows_is_not_saved_up_while_there_are_no_jobs(now: list[float]) -> None:
    budget = Budget(10.0)
    now[0] += 3600
    assert budget.left == 2
    budget.spend(2)
    assert budget.left == 0
    assert budget.seconds == pytest.approx(0.1)
    now[0] += 0.04
    assert budget.seconds == pytest.approx(0.06)
    now[0] += 1.0
    budget.spend(1)
    assert (budget.seconds, budget.left) == (0.0, 1)


def test_a_slot_that_only_the_rate_holds_back_is_free_later(now: list[float]) -> None:
    slots = Slots(4, rate=10.0)
    assert (slots.free, slots.held_back) == (2, 0.0)
    slots.spend(2)
    assert slots.free == 0
    assert slots.held_back == pytest.approx(0.1)
    for _ in range(4):
        slots.take()
    assert (slots.free, slots.held_back) == (0, None)
    slots.give_back()
    now[0] += 0.1
    assert (slots.free, slots.held_back) == (1, 0.0)
    unlimited = Slots(4)
    unlimited.spend(9)
    assert (unlimited.free, unlimited.held_back) == (4, None)


async def test_an_executor_with_a_rate_takes_no_more_and_the_others_take_the_rest(app: App) -> None:
    began: list[str] = []

    @app.task(name="shop:note", queue="mail")
    async def note() -> None: ...

    def count(executor: Executor) -> Executor:
        executor.state.bus.subscribe(JobStarted, lambda _: began.append(executor.name))
        return executor

    async with at_work(app, name="slow", rate=1 / 3600) as slow:
        count(slow)
        (first, held) = await app.enqueue([note.job(), note.job()])
        await first.get(timeout=30)
        assert (await held.status(), began) == (Status.SENT, ["slow"])
        async with at_work(app, name="fast") as fast:
            count(fast)
            await held.get(timeout=30)
            for _ in range(5):
                await (await note.delay()).get(timeout=30)
    assert began == ["slow"] + ["fast"] * 6


async def test_a_burst_leaves_what_a_rate_holds_back_like_jobs_that_are_due_later(
    app: App, logged: list[EventDict]
) -> None:
    @app.task(name="shop:note", queue="mail")
    async def note() -> None: ...

    results = await app.enqueue([note.job() for _ in range(3)])
    async with asyncio.timeout(20):
        await Executor(app, ExecutorConfig(burst=True, rate=1 / 3600)).run()
    assert [await result.status() for result in results] == [Status.SUCCESS, Status.SENT, Status.SENT]
    assert [line["event"] for line in logged].count("burst_held_back") == 1
    async with asyncio.timeout(20):
        await Executor(app, ExecutorConfig(burst=True, rate=1000.0)).run()
    assert [await result.status() for result in results] == [Status.SUCCESS] * 3
    assert [line["event"] for line in logged].count("burst_held_back") == 1


def test_the_quarantine_has_no_rate_because_a_burst_would_leave_its_jobs() -> None:
    config = ExecutorConfig(rate=0.01, tasks="shop.*").for_quarantine()
    assert (config.rate, config.burst, config.tasks) == (None, True, "shop.*")
