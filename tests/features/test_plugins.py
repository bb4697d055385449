"""Plugins: senders, performers, subscribers and services in one value."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from fennelq import App, ConfigurationError, Job, JobContext, JobFinished, JobSent, Plugin, current_job
from tests.features.conftest import MakeApp
from tests.kit.waiting import aeventually
from tests.kit.workers import running


def stamp(job: Job[Any]) -> Job[Any]:
    return job.with_headers({"by": "plugin"})


async def around(_: JobContext, call: Any) -> Any:
    return f"around {await call()}"


async def test_a_plugin_brings_all_that_an_app_takes(app: App) -> None:
    finished: list[str] = []
    ticked = asyncio.Event()

    async def tick() -> float:
        ticked.set()
        return 60

    def note(event: JobFinished) -> None:
        finished.append(event.id)

    app.use(Plugin("demo", [stamp], [around], {JobFinished: note}, [tick]))

    @app.task
    async def welcome() -> str:
        return current_job().headers["by"]

    async with running(app):
        result = await welcome.delay()
        assert await result.get(timeout=30) == "around plugin"
        await asyncio.wait_for(ticked.wait(), 20)
        await aeventually(lambda: finished)
    assert finished == [result.id]


@pytest.mark.parametrize(
    "error", [ValueError, SystemExit, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit]
)
async def test_a_service_that_raises_is_logged_and_called_again(
    app: App, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """U14."""
    monkeypatch.setattr("fennelq.worker.plugins.AFTER_AN_ERROR", 0.01)
    calls = 0

    async def flush() -> float:
        nonlocal calls
        calls += 1
        raise error

    app.use(Plugin("demo", services=[flush]))

    @app.task
    async def welcome() -> int:
        return 1

    with capture_logs() as lines:
        async with running(app):
            await aeventually(lambda: calls >= 3)
            assert await app.call(welcome.job(), timeout=30) == 1
    (line,) = [line for line in lines if line["event"] == "trouble"]
    assert line["what"] == f"plugin demo: {__name__}:{flush.__qualname__}"
    assert line["error"].startswith(error.__name__)


async def test_a_service_is_called_after_the_seconds_that_it_returns(app: App) -> None:
    calls: list[float] = []

    async def flush() -> float:
        calls.append(time.monotonic())
        return 0.05 if len(calls) < 3 else 3600

    app.use(Plugin("demo", services=[flush]))
    async with running(app):
        await aeventually(lambda: len(calls) == 3)
    assert all(later - earlier >= 0.045 for earlier, later in itertools.pairwise(calls))


@pytest.mark.parametrize("returned", [None, -1, float("nan"), float("inf"), "5"])
async def test_a_service_that_returns_no_seconds_is_logged(app: App, returned: Any) -> None:
    async def flush() -> Any:
        return returned

    app.use(Plugin("demo", services=[flush]))
    with capture_logs() as lines:
        async with running(app):
            await aeventually(lambda: [line for line in lines if line["event"] == "trouble"])
    (line,) = [line for line in lines if line["event"] == "trouble"]
    assert line["error"] == f"TypeError: a service returns the seconds until its next call, not {returned!r}"


async def test_a_service_outlives_a_job_that_cancels_it_and_ends_with_its_executor(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.worker.plugins.AFTER_AN_ERROR", 0.01)
    calls = 0
    ended: list[str] = []
    cancelling: list[int] = []

    async def flush() -> float:
        nonlocal calls
        calls += 1
        task = asyncio.current_task()
        cancelling.append(task.cancelling() if task is not None else -1)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("ended")
        return 0

    app.use(Plugin("demo", services=[flush]))

    @app.task
    async def cancel_plugins() -> None:
        for task in asyncio.all_tasks():
            if task.get_name().startswith("plugin "):
                task.cancel()

    async with running(app):
        await aeventually(lambda: calls == 1)
        await app.call(cancel_plugins.job(), timeout=30)
        await aeventually(lambda: calls == 2)
    assert ended == ["ended", "ended"]
    assert cancelling == [0, 0], "a task group in a service looks at this"
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("plugin ")] == []


async def test_a_service_that_ignores_its_end_does_not_hold_up_the_executor(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.worker.plugins.LEAVING", 0.05)
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def hang() -> float:
        begun.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue
        return 0

    app.use(Plugin("demo", services=[hang]))
    async with asyncio.timeout(20):
        async with running(app):
            await begun.wait()
    may_end.set()
    await aeventually(
        lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("plugin ")]
    )


async def test_the_watchdog_names_a_service_that_blocks(make_app: MakeApp) -> None:
    """U14."""
    app, calls = make_app(), 0

    async def flush() -> float:
        nonlocal calls
        calls += 1
        if calls == 1:
            time.sleep(1.5)
        return 3600

    app.use(Plugin("metrics", services=[flush]))

    @app.task
    async def welcome() -> int:
        return 1

    with capture_logs() as lines:
        async with running(app):
            assert await app.call(welcome.job(), timeout=10) == 1
    (line,) = [line for line in lines if line["event"] == "loop_blocked"]
    assert (line["job"], line["part"]) == ("no job", f"plugin metrics: {__name__}:{flush.__qualname__}")
    assert line["at"].endswith(" in flush")


# Mistakes


def test_a_plugin_that_is_used_twice_is_refused() -> None:
    app, plugin = App("shop"), Plugin("demo", [stamp])
    app.use(plugin)
    with pytest.raises(ConfigurationError, match="the plugin 'demo' is used twice"):
        app.use(plugin)
    with pytest.raises(ConfigurationError, match="the plugin 'demo' is used twice"):
        app.use(Plugin("demo"))
    app.use(Plugin("other"))


@pytest.mark.parametrize("bad", [None, Plugin, "demo", stamp])
def test_what_is_no_plugin_is_refused(bad: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"app\.use takes a Plugin, not .*: write app\.use\(Plugin\(…\)\)"
    ):
        App("shop").use(bad)


async def async_sender(job: Job[Any]) -> Job[Any]:
    return job


def plain_service() -> float:
    return 1.0


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"name": "no spaces"}, "plugin name 'no spaces' is not valid"),
        ({"sending": [async_sender]}, "plugin demo: sending: .*async_sender must be a plain def"),
        ({"sending": stamp}, "plugin demo: sending takes a list of senders"),
        ({"performing": [stamp]}, "plugin demo: performing takes an async function"),
        ({"subscribers": [stamp]}, "plugin demo: subscribers is a dict"),
        (
            {"subscribers": {"JobSent": stamp}},
            "plugin demo: subscribers takes an event, and 'JobSent' is not one",
        ),
        (
            {"subscribers": {JobSent: None}},
            "plugin demo: subscribers takes a function of the event, not None",
        ),
        ({"services": [plain_service]}, "plugin demo: a service is an async function without arguments"),
        ({"services": [around]}, "plugin demo: a service is an async function without arguments"),
        ({"services": around}, "plugin demo: services is a list"),
    ],
)
def test_a_plugin_with_a_mistake_is_refused_when_it_is_made(given: dict[str, Any], rule: str) -> None:
    make: Any = Plugin
    with pytest.raises(ConfigurationError, match=rule):
        make(**{"name": "demo", **given})
