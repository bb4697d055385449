"""Subscribers of an app in a program without an executor."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from weakref import ReferenceType, ref

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from fennelq import App, JobSent
from tests.kit.waiting import aeventually


def event(number: int) -> JobSent:
    return JobSent(id=f"default:{number}", task="shop:welcome", queue="default")


@pytest.fixture
def app() -> App:
    return App("shop", redis_url="redis://127.0.0.1:1")


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[EventDict]]:
    with capture_logs() as lines:
        yield lines


async def test_an_app_that_is_closed_lets_its_async_subscribers_receive_what_waits(app: App) -> None:
    received: list[str] = []

    @app.on(JobSent)
    async def note(sent: JobSent) -> None:
        await asyncio.sleep(0)
        received.append(sent.id)

    async with app:
        assert app.client is app.client
        for number in range(3):
            app.subscribers.tell(event(number))
        assert received == []
    assert received == ["default:0", "default:1", "default:2"]


async def test_a_subscriber_that_takes_too_long_at_the_end_loses_its_events_and_they_are_counted(
    app: App, monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    monkeypatch.setattr("fennelq.subscribers.LEAVING", 0.02)
    cancelled = False

    @app.on(JobSent)
    async def hang(_: JobSent) -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise

    for number in range(3):
        app.subscribers.tell(event(number))
    await app.subscribers.drain()
    await aeventually(lambda: cancelled)
    assert [(line["event"], line["why"], line["times"]) for line in logged] == [
        ("events_dropped", "its loop has ended", 1),
        ("events_dropped", "its loop has ended", 1),
    ]


async def test_a_slow_subscriber_delays_no_other(app: App) -> None:
    received: list[str] = []

    @app.on(JobSent)
    async def hang(_: JobSent) -> None:
        await asyncio.Event().wait()

    @app.on(JobSent)
    async def note(sent: JobSent) -> None:
        received.append(sent.id)

    app.subscribers.tell(event(1))
    app.subscribers.tell(event(2))
    await aeventually(lambda: received == ["default:1", "default:2"])
    for task in asyncio.all_tasks():
        if task.get_name().startswith("subscriber "):
            task.cancel()


async def test_what_cancels_the_task_of_a_subscriber_costs_one_event(app: App) -> None:
    received: list[str] = []
    hanging = asyncio.Event()

    @app.on(JobSent)
    async def note(sent: JobSent) -> None:
        if sent.id == "default:0":
            hanging.set()
            await asyncio.Event().wait()
        received.append(sent.id)

    app.subscribers.tell(event(0))
    app.subscribers.tell(event(1))
    await hanging.wait()
    (task,) = [task for task in asyncio.all_tasks() if task.get_name().startswith("subscriber ")]
    task.cancel()
    await asyncio.wait([task])
    app.subscribers.tell(event(2))
    await aeventually(lambda: received == ["default:1", "default:2"])


async def test_trouble_is_logged_once_a_minute_with_the_number_of_times(
    app: App, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: now)

    @app.on(JobSent)
    def fail(_: JobSent) -> None:
        raise ValueError("no such meter")

    for number in range(5):
        app.subscribers.tell(event(number))
    now += 60
    app.subscribers.tell(event(6))
    assert [(line["event"], line["times"], line["error"]) for line in logged] == [
        ("subscriber_failed", 1, "ValueError: no such meter"),
        ("subscriber_failed", 5, "ValueError: no such meter"),
    ]
    assert "in fail" in logged[0]["traceback"]


def test_loops_that_have_ended_leave_nothing_behind(app: App) -> None:
    received: list[str] = []

    @app.on(JobSent)
    async def note(sent: JobSent) -> None:
        received.append(sent.id)

    async def send(number: int) -> ReferenceType[asyncio.AbstractEventLoop]:
        app.subscribers.tell(event(number))
        await app.subscribers.drain()
        return ref(asyncio.get_running_loop())

    loops = [asyncio.run(send(number)) for number in range(3)]
    gc.collect()
    assert [loop() for loop in loops] == [None, None, None]
    assert received == ["default:0", "default:1", "default:2"]
