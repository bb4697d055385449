"""Tasks and jobs: a function becomes a task, a call becomes a job, a job becomes a result."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, cast
from uuid import UUID

import pytest
from pydantic import BaseModel

from fennelq import (
    App,
    ConfigurationError,
    InvalidArguments,
    JobContext,
    PayloadTooLarge,
    Status,
    current_job,
)
from tests.features.conftest import MakeApp
from tests.kit.workers import running

HERE = __name__


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


class Item(BaseModel):
    name: str
    price: Decimal


@dataclasses.dataclass(frozen=True)
class Order:
    id: UUID
    items: list[Item]
    size: Size
    placed_at: datetime
    seal: bytes


ORDER = Order(
    id=UUID(int=7),
    items=[Item(name="fennel", price=Decimal("1.20")), Item(name="Grüße, 🌿", price=Decimal(3))],
    size=Size.LARGE,
    placed_at=datetime(2026, 3, 29, 2, 30, tzinfo=UTC),
    seal=b"\x00\xff not text",
)


# Sending


async def test_a_task_is_sent_with_delay_and_its_result_is_got(app: App) -> None:
    @app.task
    async def welcome(user: str, greeting: str = "hello") -> str:
        return f"{greeting} {user}"

    async with running(app):
        result = await welcome.delay("ann", greeting="good morning")
        assert await result.get(timeout=30) == "good morning ann"
        assert await result.status() is Status.SUCCESS


async def test_a_plain_call_involves_no_queue_and_no_redis(make_app: MakeApp) -> None:
    app = make_app(redis_url="redis://127.0.0.1:1/0")

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    def half(n: int) -> float:
        return n / 2

    assert await double(21) == 42
    assert half(21) == 10.5


async def test_arguments_and_results_come_back_as_annotated(app: App) -> None:
    @app.task
    async def ship(order: Order, not_before: datetime, weight: Decimal = Decimal(0)) -> tuple[Order, Decimal]:
        assert order == ORDER
        assert isinstance(order.items[0], Item)
        assert not_before.utcoffset() == timedelta(0)
        return order, weight * 2

    async with running(app):
        result = await ship.delay(ORDER, ORDER.placed_at, weight=Decimal("0.1"))
        assert await result.get(timeout=30) == (ORDER, Decimal("0.2"))


@pytest.mark.parametrize(("arguments", "parameter"), [(("7",), "user_id"), ((7, 3), "template")])
async def test_a_wrong_call_fails_at_delay_and_names_the_parameter(
    app: App, arguments: Sequence[object], parameter: str
) -> None:
    @app.task
    async def welcome(user_id: int, template: str = "hello") -> None: ...

    with pytest.raises(InvalidArguments, match=parameter) as refused:
        await welcome.delay(*arguments)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert refused.value.parameter == parameter
    assert not await sent(app)


async def test_a_call_that_does_not_fit_the_signature_fails_at_delay(app: App) -> None:
    @app.task
    async def welcome(user_id: int) -> None: ...

    with pytest.raises(InvalidArguments, match="user_id"):
        await welcome.delay()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with pytest.raises(InvalidArguments, match="colour"):
        await welcome.delay(7, colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert not await sent(app)


async def test_a_value_that_cannot_be_encoded_fails_at_delay(app: App) -> None:
    @app.task
    async def keep(value) -> None: ...  # type: ignore[no-untyped-def]  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]

    with pytest.raises(InvalidArguments, match="value"):
        await keep.delay(object())
    assert not await sent(app)


async def test_arguments_over_the_limit_fail_at_delay_before_anything_is_sent(make_app: MakeApp) -> None:
    app = make_app(max_payload_bytes=256 * 1024)

    @app.task
    async def keep(text: str) -> int:
        return len(text)

    fits = 256 * 1024 - len('[["' + '"],{}]')
    with pytest.raises(PayloadTooLarge, match="max_payload_bytes") as refused:
        await keep.delay("x" * (fits + 1))
    assert (refused.value.size, refused.value.limit) == (256 * 1024 + 1, 256 * 1024)
    assert not await sent(app)
    async with running(app):
        assert await (await keep.delay("x" * fits)).get(timeout=30) == fits


async def test_an_id_contains_the_queue_and_makes_a_handle_anywhere(app: App, make_app: MakeApp) -> None:
    @app.task(queue="mail")
    async def add(a: int, b: int) -> int:
        return a + b

    async with running(app):
        sent_here = await add.delay(1, 2)
        queue, key = sent_here.id.split(":")
        assert queue == "mail"
        assert len(key) > 10
        elsewhere = make_app()
        assert elsewhere.result(sent_here.id) == sent_here
        assert await elsewhere.result(sent_here.id).get(timeout=30) == 3


async def test_a_handle_made_from_an_id_decodes_by_the_annotation_when_the_task_is_known(app: App) -> None:
    @app.task
    async def moment() -> datetime:
        return ORDER.placed_at

    async with running(app):
        for _ in range(20):
            sent_here = await moment.delay()
            assert await app.result(sent_here.id).get(timeout=30) == ORDER.placed_at


async def test_a_text_that_is_not_an_id_is_refused(app: App) -> None:
    for text in ("", "mail", ":7", "mail:"):
        with pytest.raises(ValueError, match="not a job id"):
            app.result(text)


# Options


async def test_options_make_another_task_and_leave_the_first_as_it_was(app: App) -> None:
    @app.task(queue="mail", headers={"by": "task"})
    async def where() -> tuple[str, dict[str, str]]:
        job = current_job()
        return job.queue, dict(job.headers)

    urgent = where.options(queue="urgent", headers={"for": "ann"}).options(priority="high")
    async with running(app):
        assert await (await urgent.delay()).get(timeout=30) == ("urgent", {"by": "task", "for": "ann"})
        assert await (await where.delay()).get(timeout=30) == ("mail", {"by": "task"})


async def test_the_options_of_a_call_override_the_task_and_those_of_the_task_the_app(
    make_app: MakeApp,
) -> None:
    app = make_app(default_retries=1)

    @app.task
    async def by_app() -> int:
        return current_job().max_retries

    @app.task(retries=2)
    async def by_task() -> int:
        return current_job().max_retries

    async with running(app):
        assert await app.call(by_app.job(), timeout=30) == 1
        assert await app.call(by_task.job(), timeout=30) == 2
        assert await app.call(by_task.options(retries=3).job(), timeout=30) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "a{b}"},
        {"queue": ""},
        {"queue": "mail\n"},
        {"queue": "a:b"},
        {"job_id": "a b"},
        {"key": "a{b}"},
        {"priority": "urgent"},
        {"delay": -1},
        {"retries": -1},
        {"timeout": 0},
        {"at": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"headers": {"a": 1}},
        {"colour": "red"},
    ],
    ids=str,
)
async def test_an_option_that_makes_no_sense_is_refused_at_once(app: App, options: dict[str, Any]) -> None:
    @app.task
    async def welcome() -> None: ...

    with pytest.raises(ConfigurationError):
        welcome.options(**options)


async def test_an_unknown_option_is_answered_with_the_nearest_known_one(app: App) -> None:
    @app.task
    async def welcome() -> None: ...

    with pytest.raises(ConfigurationError, match="did you mean 'priority'"):
        welcome.options(priorty="high")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# Several at once


async def test_a_described_job_is_sent_when_it_is_enqueued(app: App) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    job = add.job(1, 2)
    assert not await sent(app)
    (result,) = await app.enqueue([job])
    assert result.id == job.id
    async with running(app):
        assert await result.get(timeout=30) == 3


async def test_a_described_job_is_one_job_however_often_it_is_enqueued(app: App) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    job = add.job(1, 2)
    for _ in range(3):
        (result,) = await app.enqueue([job])
        assert not result.deduplicated
    assert await sent(app) == 1


async def test_many_jobs_are_enqueued_and_their_handles_come_in_order(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task(queue="other")
    async def negate(n: int) -> int:
        return -n

    jobs = [task.job(n) for n in range(150) for task in (double, negate)]
    results = await app.enqueue(jobs)
    assert [result.id for result in results] == [job.id for job in jobs]
    async with running(app):
        assert await results[298].get(timeout=30) == 298
        assert await results[299].get(timeout=30) == -149


async def test_map_sends_one_job_per_element(app: App) -> None:
    @app.task
    async def power(base: int, exponent: int) -> int:
        return int(base**exponent)

    async with running(app):
        results = await power.map([2, 3, 4], [10, 2, 1])
        assert [await result.get(timeout=30) for result in results] == [1024, 9, 4]
        assert await power.map([], []) == []


async def test_call_sends_and_waits_in_one_go(app: App) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with running(app):
        assert await app.call(add.job(1, 2), timeout=30) == 3


# Names


async def test_a_task_whose_code_is_elsewhere_is_sent_by_its_name(app: App, make_app: MakeApp) -> None:
    @app.task(queue="mail")
    async def welcome(user_id: int, template: str = "hello") -> str:
        return f"{template} {user_id} by {current_job().headers['by']}"

    caller = make_app()
    name = f"{HERE}:{welcome.function.__qualname__}"
    async with running(app):
        result = await caller.send(
            name, 42, _kwargs={"template": "bye"}, queue="mail", headers={"by": "mail"}, timeout=5
        )
        assert await result.get(timeout=30) == "bye 42 by mail"


async def test_a_task_sent_by_name_is_checked_like_any_other_when_its_code_is_here(app: App) -> None:
    @app.task(name="shop:welcome", queue="mail")
    async def welcome(user_id: int) -> int:
        return user_id

    with pytest.raises(InvalidArguments, match="user_id"):
        await app.send("shop:welcome", "not a number")
    async with running(app):
        result = await app.send("shop:welcome", 42)
        assert result.id.startswith("mail:")
        assert await result.get(timeout=30) == 42


@pytest.mark.parametrize(
    "name", ["welcome", ":welcome", "shop:", "shop: welcome", "s:" + "x" * 10_000], ids=len
)
async def test_a_name_that_is_not_valid_for_a_task_is_refused_at_once(app: App, name: str) -> None:
    with pytest.raises(ConfigurationError, match="task name") as refused:
        await app.send(name, 42)
    assert len(str(refused.value)) < 300


async def test_two_tasks_of_one_name_are_refused(app: App) -> None:
    @app.task(name="shop:welcome")
    async def one() -> None: ...

    with pytest.raises(ConfigurationError, match="declared twice"):

        @app.task(name="shop:welcome")
        async def other() -> None: ...


@pytest.mark.parametrize("option", ["delay", "at", "key", "job_id"])
async def test_an_option_of_one_call_is_refused_on_the_task(app: App, option: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"options\({option}="):
        app.task(**cast("Any", {option: "1"}))(print)


# Inside a task


async def test_a_running_task_may_ask_which_job_it_is(app: App) -> None:
    seen: list[JobContext] = []

    @app.task(queue="mail", retries=4)
    async def welcome() -> None:
        seen.append(current_job())

    before = datetime.now(UTC) - timedelta(seconds=5)
    async with running(app):
        result = await welcome.options(headers={"request": "r-1"}).delay()
        await result.get(timeout=30)
    (job,) = seen
    assert (job.id, job.task, job.queue) == (result.id, welcome.name, "mail")
    assert (job.tries, job.max_retries, job.fence) == (1, 4, 1)
    assert job.headers == {"request": "r-1"}
    assert before < job.enqueued_at < datetime.now(UTC) + timedelta(seconds=5)


def test_outside_of_a_job_current_job_raises() -> None:
    with pytest.raises(LookupError, match="inside a task"):
        current_job()


async def test_everything_known_about_a_job_is_in_its_info(app: App) -> None:
    @app.task(queue="mail")
    async def welcome(user: str) -> str:
        return user

    async with running(app):
        result = await welcome.options(headers={"request": "r-1"}, priority="low").delay("ann")
        await result.get(timeout=30)
        info = await result.info()
    assert info is not None
    assert (info.id, info.task, info.queue, info.priority) == (result.id, welcome.name, "mail", "low")
    assert (info.status, info.tries, info.headers) == (Status.SUCCESS, 1, {"request": "r-1"})
    assert info.enqueued_at is not None
    assert info.started_at is not None
    assert info.ended_at is not None
    assert info.enqueued_at <= info.started_at <= info.ended_at
    assert (info.error, info.reason, info.owner) == (None, None, None)


async def test_an_unknown_job_has_no_info_and_the_status_unknown(app: App) -> None:
    result = app.result("mail:missing")
    assert await result.info() is None
    assert await result.status() is Status.UNKNOWN
    assert not await result.cancel()


async def sent(app: App) -> int:
    """How many jobs wait in the default queue."""
    from fennelq.broker import verbs

    keys = app.client.keys(app.settings.default_queue)
    return await app.client.ask(verbs.queues.length(keys, "s"))
