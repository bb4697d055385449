"""How often `fennelq top` looks at Redis: by a clock that the test holds, and while something is in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from fennelq import App, ExecutorInfo, QueueInfo, clock
from fennelq.broker.talk import Talk
from fennelq.cli.top import looking
from fennelq.cli.top.looking import Looking
from fennelq.cli.top.rows import PerSecond, Row, Span, in_order, moment, shown
from fennelq.cli.top.views import Partly, QueuesView, View
from fennelq.errors import BrokerUnavailable, InvalidFilter
from fennelq.manage import watch
from fennelq.manage.watch import SHARE, SHORTEST, Look, Snapshot
from tests.cli.screens import before_the_screen
from tests.kit.apps import LocalApp
from tests.kit.server import Server
from tests.kit.waiting import aeventually

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)


class Stage:
    """An app whose looks end at once, and a clock that goes only while everything sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.looks: list[float] = []
        """When the watch has looked."""
        self.error: Exception | None = None
        self._sleeps: list[tuple[float, asyncio.Future[None]]] = []
        self.app = cast(
            "App", SimpleNamespace(namespace="shop", client=SimpleNamespace(converse=self._converse))
        )
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        for module in (watch, looking):
            monkeypatch.setattr(module, "sleep", self._sleep)

    async def _converse(self, talk: Talk[Any]) -> Look:
        talk.close()
        self.looks.append(self.now)
        if self.error is not None:
            raise self.error
        mail = QueueInfo(
            name="mail", waiting=0, running=0, scheduled=0, retry=0, dead=0, lanes={}, ended={}, at=NOON
        )
        return Look([mail], [ExecutorInfo("anna", "works", {})])

    async def _sleep(self, seconds: float) -> None:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeps.append((self.now + seconds, end))
        await end

    async def settle(self) -> None:
        """Everything that can go on without time does."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def run_for(self, seconds: float) -> None:
        """Time passes."""
        end = self.now + seconds
        await self.settle()
        while self._sleeps and (first := min(self._sleeps, key=lambda one: one[0]))[0] <= end:
            self._sleeps.remove(first)
            self.now = max(self.now, first[0])
            if not first[1].done():
                first[1].set_result(None)
            await self.settle()
        self.now = end


class Asking(View):
    """A view that asks something, which takes so many seconds."""

    title = "asking"

    def __init__(self, stage: Stage, took: float = 0.0) -> None:
        self.stage, self.took = stage, took
        self.asked: list[float] = []
        self.error: Exception | None = None

    async def look(self, app: App, snapshot: Snapshot, partly: Partly) -> float:
        """The moment."""
        self.asked.append(self.stage.now)
        self.stage.now += self.took
        if self.error is not None:
            raise self.error
        return self.stage.now


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


@pytest.fixture
async def looks(stage: Stage) -> AsyncIterator[Looking]:
    """It looks, with a view that asks nothing."""
    found = Looking(stage.app, QueuesView(), lambda: None)
    found.start()
    await stage.settle()
    yield found
    await found.stop()


def shortest_gap(moments: list[float]) -> float:
    """Between two of these moments."""
    return min(after - before for before, after in pairwise(moments))


async def test_it_looks_once_a_second_and_so_does_the_open_view(stage: Stage, looks: Looking) -> None:
    view = Asking(stage)
    looks.open(view)
    await stage.run_for(60)
    assert len(stage.looks) == 61
    assert shortest_gap(stage.looks) >= SHORTEST
    assert len(view.asked) in (60, 61)
    assert shortest_gap(view.asked) >= SHORTEST
    assert looks.picture.seen == view.asked[-1]


async def test_a_view_that_has_all_it_shows_asks_nothing(stage: Stage, looks: Looking) -> None:
    assert not looks.view.asks
    await stage.run_for(10)
    assert len(stage.looks) == 11


async def test_a_person_who_goes_back_and_forth_does_not_make_it_look_more_often(
    stage: Stage, looks: Looking
) -> None:
    asked: list[float] = []
    for _ in range(100):
        view = Asking(stage)
        view.asked = asked
        looks.open(view)
        await stage.run_for(0.1)
    assert len(stage.looks) <= 11
    assert 9 <= len(asked) <= 11
    assert shortest_gap(asked) >= SHORTEST - 1e-6


async def test_a_look_at_a_view_is_followed_by_a_pause_that_is_fifty_times_as_long(
    stage: Stage, looks: Looking
) -> None:
    slow, quick = Asking(stage, took=0.2), Asking(stage)
    looks.open(slow)
    await stage.run_for(25)
    assert shortest_gap(slow.asked) >= SHARE * 0.2
    assert len(slow.asked) == 3
    looks.open(quick)
    await stage.run_for(2.1)
    assert quick.asked, "another view does not wait for the end of this pause"


async def test_nothing_is_asked_while_it_is_stopped_and_it_goes_on_at_once(
    stage: Stage, looks: Looking
) -> None:
    view = Asking(stage)
    looks.open(view)
    await stage.run_for(5)
    await looks.stop()
    before = (len(stage.looks), len(view.asked))
    await stage.run_for(3600)
    assert (len(stage.looks), len(view.asked)) == before
    assert looks.picture.snapshot is not None, "the picture stays"
    assert looks.trouble() == ""
    looks.start()
    await stage.settle()
    assert len(stage.looks) == before[0] + 1


async def test_while_redis_is_away_it_looks_once_a_second_and_says_since_when(
    stage: Stage, looks: Looking
) -> None:
    await stage.run_for(3)
    stage.error = BrokerUnavailable("refuses connections", url="redis://x")
    before = len(stage.looks)
    await stage.run_for(30)
    assert len(stage.looks) - before == 30
    trouble = looks.trouble()
    assert trouble.startswith("No news since ")
    assert "Redis refuses connections; the picture is of " in trouble
    stage.error = None
    await stage.run_for(1)
    assert looks.trouble() == ""


async def test_a_look_that_gets_no_reply_is_reported(stage: Stage, looks: Looking) -> None:
    await stage.run_for(1)
    never: asyncio.Future[Look] = asyncio.get_running_loop().create_future()

    async def silent(talk: Talk[Any]) -> Look:
        talk.close()
        return await never

    cast("Any", stage.app).client.converse = silent
    await stage.run_for(2)
    assert looks.trouble() == ""
    await stage.run_for(8)
    assert looks.trouble().startswith("Redis has not replied for ")


async def test_the_error_of_a_view_is_its_own_and_does_not_end_the_looking(
    stage: Stage, looks: Looking
) -> None:
    view = Asking(stage)
    view.error = InvalidFilter("no such word\x1b[2J")
    looks.open(view)
    await stage.run_for(2)
    assert looks.picture.refused == "no such word\\x1b[2J"
    assert looks.trouble() == ""
    view.error = RuntimeError("a mistake")
    await stage.run_for(2)
    assert looks.picture.refused == "RuntimeError: a mistake"
    view.error = None
    await stage.run_for(2)
    assert (looks.picture.refused, looks.picture.seen) == ("", view.asked[-1])


async def test_a_search_that_goes_on_ends_when_another_view_is_opened(stage: Stage, looks: Looking) -> None:
    ended = asyncio.Event()

    class Endless(Asking):
        async def look(self, app: App, snapshot: Snapshot, partly: Partly) -> float:
            partly(1.5)
            with suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()
            ended.set()
            raise asyncio.CancelledError

    looks.open(Endless(stage))
    await stage.run_for(1)
    assert looks.picture.seen == 1.5
    view = Asking(stage)
    looks.open(view)
    await stage.run_for(2)
    assert ended.is_set()
    assert view.asked


# On a server


async def test_behind_the_question_whether_to_leave_no_command_reaches_redis(server: Server) -> None:
    app = LocalApp("shop", redis_url=server.url)

    def commands() -> int:
        with server.client() as client:
            return int(cast("Any", client.info("stats"))["total_commands_processed"])

    with capture_logs():
        async with app, before_the_screen(app) as one:
            await one.sees("Nothing needs attention")
            await one.press("q")
            await one.sees("Leave fennelq top?")
            await aeventually(lambda: not looking_tasks())
            before = commands()
            for _ in range(10):
                await one.press("down")
            assert commands() - before <= 4, "those of the connections that count"
            await one.press("escape")
            await one.sees_no("Leave")
            assert looking_tasks()
            await aeventually(lambda: commands() - before > 10)


def looking_tasks() -> list[str]:
    """The tasks that ask Redis by themselves. Without them, only a key could ask something."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() in ("looking", "watch")]


# Rows


def test_rows_are_sorted_by_numbers_moments_or_texts_with_empty_cells_last() -> None:
    rows = [
        Row("a", ("x", 3, Span(70), NOON)),
        Row("b", ("z", None, Span(5), None)),
        Row("c", ("y", 20, Span(3600), NOON.replace(hour=13))),
        Row("d", ("w", "unknown", None, NOON.replace(hour=1))),
    ]

    def keys(column: int | None, *, reverse: bool = False) -> str:
        return "".join(row.key for row in in_order(rows, column, reverse=reverse))

    assert (keys(None), keys(None, reverse=True)) == ("abcd", "dcba")
    assert (keys(0), keys(0, reverse=True)) == ("dacb", "bcad")
    assert (keys(1), keys(1, reverse=True)) == ("cabd", "acbd")
    assert (keys(2), keys(2, reverse=True)) == ("cabd", "bacd")
    assert (keys(3), keys(3, reverse=True)) == ("cadb", "dacb")


def test_values_are_shown_for_people() -> None:
    assert shown(1234567) == "1,234,567"
    assert shown(Span(125)) == "2 min"
    assert shown(PerSecond(1234.56)) == "1,234.6"
    assert shown("a\x1b[2Jb\n" + "x" * 5000).startswith("a\\x1b[2Jb\\nx")
    assert len(shown("x" * 5000)) == 1000
    assert shown(None) == ""
    local = NOON.astimezone()
    assert moment(NOON, NOON) == f"{local:%H:%M:%S}"
    assert moment(NOON, NOON.replace(day=21)) == f"{local:%Y-%m-%d %H:%M}"
