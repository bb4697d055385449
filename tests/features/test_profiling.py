"""Profiles of executors: which task takes the time, who may ask, and what happens when the executor is gone."""

from __future__ import annotations

import asyncio
import threading
import xml.etree.ElementTree as ET
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from fennelq import App, ConfigurationError, ExecutorUnavailable, UnknownExecutor
from fennelq.broker.keys import executors_key
from fennelq.manage.executors import profiling
from fennelq.manage.executors.flame_graph import svg
from fennelq.manage.executors.profile_files import collapsed, speedscope
from fennelq.worker.executor import Executor
from fennelq.worker.threads import profiler
from tests.features.conftest import MakeApp
from tests.kit.apps import LocalApp
from tests.kit.server import Server
from tests.kit.waiting import aeventually, eventually
from tests.kit.workers import running_aside

LONG = 30.0
_over = threading.Event()


def burn() -> int:
    """Takes time until the test is over."""
    n = 0
    while not _over.is_set():
        n = n * 31 % 1_000_003 + 1  # the hot line
    return n


HOT_LINES = range(burn.__code__.co_firstlineno + 3, burn.__code__.co_firstlineno + 5)


async def hot_on_the_loop() -> None:
    """Takes turns with the loop, so that its executor goes on."""
    while not _over.is_set():
        for _ in range(20_000):
            pass
        await asyncio.sleep(0)


async def idle() -> None:
    await asyncio.to_thread(_over.wait)


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    _over.clear()
    yield
    _over.set()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "REPORT_EVERY", 0.1)


def with_tasks(app: App) -> App:
    app.task(name="shop:burn")(burn)
    app.task(name="shop:hot_on_the_loop")(hot_on_the_loop)
    app.task(name="shop:idle")(idle)
    return app


@asynccontextmanager
async def executing(make_app: MakeApp, server: Server) -> AsyncGenerator[Executor]:
    """An executor on a loop of its own, from its first report on. At the end, its jobs end."""
    with running_aside(with_tasks(make_app()), concurrency=4) as executor, server.client() as client:
        try:
            await aeventually(lambda: client.hexists(executors_key("shop"), executor.name), within=LONG)
            yield executor
        finally:
            _over.set()


async def test_a_profile_names_the_hot_task_first_and_its_line(make_app: MakeApp, server: Server) -> None:
    app = with_tasks(make_app())
    async with executing(make_app, server) as executor:
        burning = await app.tasks["shop:burn"].delay()
        await app.tasks["shop:idle"].delay()
        await aeventually(lambda: executor.slots.taken == 2, within=LONG)
        told: list[float] = []
        profile = await app.executors.profile(executor.name, seconds=1, progress=told.append)
    first, *others = profile.tasks
    assert first.task == "shop:burn"
    call, value = first.lines[0]
    assert call.function == "burn"
    assert call.line in HOT_LINES
    assert call.file.endswith("features/test_profiling.py")
    assert value > first.value / 2
    assert first.share == first.value / profile.total
    assert sum(task.value for task in (first, *others)) == profile.total
    assert not profile.memory
    assert 0 < profile.samples <= profile.seconds / profiler.EVERY + 1
    assert profile.idle <= profile.samples
    assert profile.jobs[burning.id] <= profile.samples
    assert told == sorted(told)
    assert told[-1] <= profile.seconds + 0.05, "it is rounded to tenths"
    with server.client() as client:
        assert client.keys("*prof:*") == [], "the client deletes a profile that it has read"


async def test_tasks_in_processes_of_their_own_are_named_because_they_are_not_sampled(
    make_app: MakeApp, server: Server
) -> None:
    async with executing(make_app, server) as executor:
        for number in range(25):
            executor.state.app.task(name=f"shop:apart_{number:02}", isolation="process")(burn)
        profile = await make_app().executors.profile(executor.name, seconds=0.2)
    assert profile.elsewhere == [f"shop:apart_{number:02}" for number in range(20)]
    assert profile.is_elsewhere("apart_03")
    assert profile.is_elsewhere("shop:apart_03")
    assert not profile.is_elsewhere("burn")


async def test_code_on_the_loop_is_counted_for_its_job(make_app: MakeApp, server: Server) -> None:
    app = with_tasks(make_app())
    async with executing(make_app, server) as executor:
        await app.tasks["shop:hot_on_the_loop"].delay()
        await aeventually(lambda: executor.slots.taken == 1, within=LONG)
        profile = await app.executors.profile(executor.name, seconds=0.5)
        one = await app.executors.profile(executor.name, seconds=0.2, task="hot_on_the_loop")
        none = await app.executors.profile(executor.name, seconds=0.2, task="shop:idle")
    first = profile.tasks[0]
    assert first.task == "shop:hot_on_the_loop"
    assert first.lines[0][0].function == "hot_on_the_loop"
    outermost = next(stack for stack in profile.stacks if stack.task == first.task).calls[0]
    assert outermost.function == "hot_on_the_loop", "the calls around every job are left out"
    assert {task.task for task in one.tasks} == {"shop:hot_on_the_loop"}
    assert none.tasks == []


async def test_a_second_request_is_refused_with_the_name_of_the_first(
    make_app: MakeApp, server: Server
) -> None:
    app = with_tasks(make_app())
    async with executing(make_app, server) as executor:
        first = asyncio.create_task(app.executors.profile(executor.name, seconds=60, who="ada@web-1"))
        await aeventually(lambda: executor.deputy.profiles, within=LONG)
        with pytest.raises(
            ExecutorUnavailable, match=r"is being profiled by ada@web-1, for \S+ s more: ask again"
        ):
            await app.executors.profile(executor.name, seconds=1)
        first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_a_client_that_goes_away_ends_the_profile(
    make_app: MakeApp, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "ROOM_MS", 300)
    app = with_tasks(make_app())
    async with executing(make_app, server) as executor:
        asked = asyncio.create_task(app.executors.profile(executor.name, seconds=600))
        await aeventually(lambda: executor.deputy.profiles, within=LONG)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await aeventually(lambda: not executor.deputy.profiles, within=LONG)
        names = {thread.name for thread in threading.enumerate()}
        assert "fennelq-sampler" not in names
        again = await app.executors.profile(executor.name, seconds=0.1)
        assert again.executor == executor.name


async def test_an_executor_that_stops_meanwhile_says_so(make_app: MakeApp, server: Server) -> None:
    app = with_tasks(make_app())
    async with executing(make_app, server) as executor:
        asked = asyncio.create_task(app.executors.profile(executor.name, seconds=60))
        await aeventually(lambda: executor.deputy.profiles, within=LONG)
    with pytest.raises(ExecutorUnavailable, match="stops, and has ended the profile"):
        await asked


async def test_a_profiler_that_fails_says_so(
    make_app: MakeApp, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("fennelq.worker.sampling.Samples.take", broken)
    app = with_tasks(make_app())
    async with executing(make_app, server) as executor:
        with pytest.raises(ExecutorUnavailable, match="has failed to make the profile: MemoryError"):
            await app.executors.profile(executor.name, seconds=0.2)
        monkeypatch.undo()
        assert (await app.executors.profile(executor.name, seconds=0.1)).samples


async def test_an_executor_that_does_not_report_is_given_up(
    make_app: MakeApp, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "SILENT_AFTER", 0.3)
    monkeypatch.setattr(profiler, "REPORT_EVERY", 60)
    app = with_tasks(make_app())
    async with executing(make_app, server) as executor:
        with pytest.raises(
            ExecutorUnavailable, match=r"has not reported on the profile for 0\.3 s\. Its process is"
        ):
            await app.executors.profile(executor.name, seconds=50)


async def test_memory_that_a_task_keeps_is_found(make_app: MakeApp, server: Server) -> None:
    app, aside = make_app(), make_app()
    kept: list[bytearray] = []

    def keep() -> None:
        while not _over.wait(0.01):
            kept.append(bytearray(100_000))

    app.task(name="shop:keep")(keep)
    aside.task(name="shop:keep")(keep)
    with running_aside(aside) as executor:
        await app.tasks["shop:keep"].delay()
        await aeventually(lambda: kept, within=LONG)
        profile = await app.executors.profile(executor.name, seconds=0.5, memory=True)
        _over.set()
    assert profile.memory
    first = profile.tasks[0]
    assert first.task == "shop:keep"
    call, value = first.lines[0]
    assert call.function.endswith(".<locals>.keep")
    assert call.line == keep.__code__.co_firstlineno + 2
    assert value >= 100_000


def test_code_without_an_event_loop_asks_in_the_same_way(redis_url: str) -> None:
    settings: dict[str, Any] = {"redis_url": redis_url, "heartbeat_interval": 0.1}
    app = with_tasks(LocalApp("shop", **settings))
    with running_aside(with_tasks(LocalApp("shop", **settings))) as executor:
        app.tasks["shop:burn"].sync.delay()
        eventually(lambda: executor.slots.taken == 1, within=LONG)
        profile = app.sync.executors.profile(executor.name, seconds=0.3)
        _over.set()
    assert profile.tasks[0].task == "shop:burn"
    app.blocking.close()


@pytest.mark.parametrize("seconds", [0, 0.01, 601, float("inf")])
async def test_a_time_that_makes_no_sense_is_refused(app: App, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match=r"a profile takes from 0\.1 to 600 seconds"):
        await app.executors.profile("anna", seconds=seconds)


async def test_an_unknown_executor_is_named(app: App) -> None:
    with pytest.raises(UnknownExecutor, match="anna"):
        await app.executors.profile("anna")


async def test_a_real_profile_can_be_written_in_every_form(make_app: MakeApp, server: Server) -> None:
    app = with_tasks(make_app())
    async with executing(make_app, server) as executor:
        await app.tasks["shop:burn"].delay()
        await aeventually(lambda: executor.slots.taken == 1, within=LONG)
        profile = await app.executors.profile(executor.name, seconds=0.3)
    titles = [one.text or "" for one in ET.fromstring(svg(profile)).iter("{http://www.w3.org/2000/svg}title")]
    assert any(title.startswith("burn (") and ", line " in title for title in titles)
    document = orjson.loads(speedscope(profile))
    whole = document["profiles"][0]
    assert whole["type"] == "sampled"
    assert len(whole["samples"]) == len(whole["weights"]) == len(profile.stacks)
    names = [frame["name"] for frame in document["shared"]["frames"]]
    assert names[whole["samples"][0][0]] == profile.stacks[0].task
    values = [int(line.rpartition(" ")[2]) for line in collapsed(profile).splitlines()]
    assert values == [stack.value for stack in profile.stacks]
