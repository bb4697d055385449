"""Context that travels with jobs: `carry=[…]` for structlog's variables, `app.carry(var)` for a ContextVar."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest
import structlog

from fennelq import App, ConfigurationError, Job, RetryPolicy, TaskFailed, UsageError, current_job
from tests.features.conftest import MakeApp
from tests.kit.waiting import aeventually
from tests.kit.workers import running

tenant: ContextVar[str] = ContextVar("tenant")
locale: ContextVar[str | None] = ContextVar("locale", default=None)


def bound(name: str) -> object:
    return structlog.contextvars.get_contextvars().get(name)


async def test_texts_travel_from_the_code_that_sends_to_the_code_that_runs_and_on_to_its_children(
    make_app: MakeApp,
) -> None:
    app = make_app(carry=["request_id"])
    app.carry(tenant)
    app.carry(locale)
    seen: dict[str, tuple[object, ...]] = {}

    def note(what: str) -> None:
        seen[what] = (bound("request_id"), tenant.get(None), locale.get())

    @app.performing
    async def look(_: Any, call: Any) -> Any:
        note(f"around {current_job().task}")
        return await call()

    @app.task(name="shop:parent")
    async def parent() -> None:
        note("parent")
        await child.delay()

    @app.task(name="shop:child")
    def child() -> None:
        note("child")
        grandchild.sync.delay()

    @app.task(name="shop:grandchild", retry=RetryPolicy.fixed(1, delay=0))
    async def grandchild() -> None:
        if current_job().tries == 1:
            raise ConnectionError
        note("second try of the grandchild")

    @app.task(name="shop:other")
    async def other() -> None:
        note("other")

    async with running(app):
        await other.delay()
        with structlog.contextvars.bound_contextvars(request_id="r-1", secret="s"):
            token = tenant.set("acme")
            result = await parent.delay()
            tenant.reset(token)
        await aeventually(lambda: len(seen) == 8)
        info = await result.info()
    assert info is not None
    assert info.headers == {"ctx.request_id": "r-1", "ctx.tenant": "acme"}
    inherited = ("r-1", "acme", None)
    assert seen.pop("other") == seen.pop("around shop:other") == (None, None, None)
    assert seen == dict.fromkeys(
        [
            "around shop:parent",
            "parent",
            "around shop:child",
            "child",
            "around shop:grandchild",
            "second try of the grandchild",
        ],
        inherited,
    )


async def test_the_context_is_set_around_performers_that_were_registered_before(app: App) -> None:
    seen: list[str] = []

    @app.sending
    def look(job: Job[Any]) -> Job[Any]:
        seen.append(job.headers["ctx.tenant"])
        return job

    @app.performing
    async def around(_: Any, call: Any) -> Any:
        seen.append(tenant.get("none"))
        return await call()

    @app.task
    async def welcome() -> None: ...

    app.carry(tenant)
    async with running(app):
        token = tenant.set("acme")
        result = await welcome.delay()
        tenant.reset(token)
        await result.get(timeout=30)
    assert seen == ["acme", "acme"]


async def test_a_replayed_job_has_the_context_in_which_it_was_sent_first(app: App) -> None:
    app.carry(tenant)
    seen: list[str] = []

    @app.task(retries=0)
    async def charge() -> None:
        seen.append(tenant.get())
        if len(seen) == 1:
            raise ConnectionError

    async with running(app):
        tenant.set("acme")
        result = await charge.delay()
        with pytest.raises(TaskFailed):
            await result.get(timeout=30)
        tenant.set("other")
        await app.dlq.replay()
        await aeventually(lambda: len(seen) == 2)
    assert seen == ["acme", "acme"]


async def test_a_job_that_is_sent_a_second_time_keeps_its_context(app: App) -> None:
    app.carry(tenant)

    @app.task
    async def welcome() -> None: ...

    tenant.set("acme")
    job = welcome.job().with_headers({"ctx.tenant": "given", "x": "y"})
    (result,) = await app.enqueue([job])
    info = await result.info()
    assert info is not None
    assert info.headers == {"ctx.tenant": "given", "x": "y"}
    assert await result.cancel()


async def test_jobs_at_the_same_time_have_contexts_of_their_own(app: App) -> None:
    app.carry(tenant)
    all_there = asyncio.Barrier(8)

    @app.task
    async def who() -> str:
        await all_there.wait()
        return tenant.get()

    results: list[Any] = []
    for n in range(8):
        tenant.set(f"t-{n}")
        results.append(await who.delay())
    async with running(app, concurrency=8):
        assert [await result.get(timeout=30) for result in results] == [f"t-{n}" for n in range(8)]


async def test_names_that_the_worker_does_not_carry_are_not_set(make_app: MakeApp) -> None:
    app = make_app(carry=["request_id"])

    @app.task
    async def names() -> dict[str, str]:
        return {name: str(value) for name, value in structlog.contextvars.get_contextvars().items()}

    async with running(app):
        result = await names.options(headers={"ctx.request_id": "r-1", "ctx.other": "x"}).delay()
        assert await result.get(timeout=30) == {"request_id": "r-1"}


# Mistakes


@pytest.mark.parametrize("value", [42, b"r-1", ["r-1"]])
async def test_a_value_that_is_no_text_is_refused_where_the_job_is_sent(
    make_app: MakeApp, value: Any
) -> None:
    app = make_app(carry=["request_id"])
    anything: Any = tenant
    app.carry(tenant)

    @app.task
    async def welcome() -> None: ...

    with (
        structlog.contextvars.bound_contextvars(request_id=value),
        pytest.raises(
            UsageError,
            match=r"variable request_id is an? \w+ object, and a job carries only strings",
        ),
    ):
        await welcome.delay()
    token = anything.set(value)
    with pytest.raises(
        UsageError, match=r"variable tenant is an? \w+ object, and a job carries only strings"
    ):
        await asyncio.to_thread(welcome.sync.delay)
    anything.reset(token)
    assert (await app.queues.info("default")).waiting == 0


async def test_texts_beyond_the_limit_of_headers_are_refused_where_the_job_is_sent(app: App) -> None:
    app.carry(tenant)

    @app.task
    async def welcome() -> None: ...

    tenant.set("x" * 9000)
    with pytest.raises(ConfigurationError, match=r"headers take 9,010 bytes, more than 8,192"):
        await welcome.delay()


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("request_id", r"takes a ContextVar of strings, not a str object.*carry=\["),
        (ContextVar("limit", default=5), "carries strings, and the default of limit is an int object"),
        (ContextVar[str]("no spaces"), "the name of .* is not valid for a header"),
    ],
)
def test_what_cannot_be_carried_is_refused_at_carry(given: Any, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        App("shop").carry(given)


def test_a_name_that_is_carried_already_is_refused() -> None:
    app = App("shop", carry=["tenant"])
    with pytest.raises(ConfigurationError, match="tenant is carried already"):
        app.carry(tenant)


@pytest.mark.parametrize(
    ("carry", "rule"),
    [(["no spaces"], "setting carry: name 'no spaces' is not valid"), (["a", "a"], "'a' is there twice")],
)
def test_names_in_the_setting_are_checked(carry: list[str], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        App("shop", carry=carry)


def test_the_setting_is_a_list_of_words_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENNELQ_CARRY", "request_id, user")
    assert App("shop").settings.carry == ["request_id", "user"]
