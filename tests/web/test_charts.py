"""Charts, small lines and percentiles: from the runs and times that executors report, which are read in small steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fennelq import App, clock
from fennelq.broker.keys import queue_keys
from fennelq.broker.talk import ask
from fennelq.broker.verbs.times import WINDOW_MS, Report, end_of, field_of, meter, minute_of
from fennelq.manage.queues.info import QueueInfo
from fennelq.manage.time_pieces import Piece, read_pieces
from fennelq.manage.watch import Snapshot, look_at
from fennelq.web import series
from fennelq.web.details import Details
from fennelq.web.drawing import chart, part, scale, spark
from fennelq.web.looks import Kept, Look
from fennelq.web.pages.group import since_then
from fennelq.web.series import Counts, Series
from tests.kit.clock import ServerClock
from tests.kit.waiting import aeventually
from tests.web.kit import Browser, text_of

pytestmark = pytest.mark.audit(unfinished=True)

HOUR, MINUTE = 3600.0, 60.0


async def report(app: App, queue: str, counts: Mapping[str, int], number: int = 1) -> None:
    """What an executor reports once a minute; and jobs of the queue that ended, as the settling would count them."""
    keys = queue_keys(app.namespace, queue)
    done = Report("web-1", "life", number, counts)

    def talk() -> Any:
        return (yield from ask(meter(keys, done, 86_400_000)))

    assert await app.client.converse(talk())


async def used(app: App, *queues: str) -> None:
    """Jobs of these queues have ended: only then executors report."""
    for queue in queues:

        @app.task(name=f"shop:{queue}", queue=queue)
        async def work(number: int) -> None: ...

        job = await work.options(delay=3600).delay(1)
        await job.cancel()


async def now_of(app: App) -> float:
    """The seconds since the epoch, by the server's clock."""
    return max(info.at.timestamp() for info in await app.queues.list() if info.at)


async def test_the_chart_of_an_hour_has_the_runs_that_executors_report(app: App) -> None:
    await used(app, "mail", "billing")
    minute = int(await now_of(app) // 60)
    await report(app, "mail", {minute_of(minute - 10, "S"): 240, minute_of(minute - 10, "R"): 12})
    await report(app, "billing", {minute_of(minute - 30, "D"): 3, minute_of(minute - 3, "S"): 60})
    async with Browser(app) as pages:
        html = (await pages.get("/")).text
        assert "300 succeeded, 12 failed and are retried, 3 died" in html
        assert "Ended per second" in text_of(html)
        drawn = dict(re.findall(r'<path class="(ok|retry|dead)" d="([^"]*)"', html))
        assert {kind: path.count("M") for kind, path in drawn.items()} == {"ok": 2, "retry": 1, "dead": 1}
        html = (await pages.get("/queues/billing")).text
        assert "60 succeeded, 0 failed and are retried, 3 died" in html
        html = (await pages.get("/queues/default")).text
        assert "0 succeeded, 0 failed and are retried, 0 died" in html


async def test_a_day_is_drawn_from_its_hours(app: App) -> None:
    await used(app, "mail")
    minute = int(await now_of(app) // 60)
    counts = {minute_of(minute - 60 * hour - 5, "S"): 7 for hour in range(23)}
    await report(app, "mail", counts)
    html = ""
    async with Browser(app) as pages:
        for _ in range(7):  # each page waits for one step, and there are six
            html = (await pages.get("/queues/mail?hours=24")).text
        assert f"The runs of the last 1 d: {7 * 23} succeeded" in html
        assert "The runs of the last 6 h: 42 succeeded" in (await pages.get("/queues/mail?hours=6")).text


async def test_queues_and_tasks_show_percentiles_of_waits_and_runs(app: App) -> None:
    await used(app, "mail")
    counts = {field_of("shop:mail", "r", 3): 100, field_of("shop:mail", "w", 8): 100}
    await report(app, "mail", {**counts, end_of("shop:mail", "S"): 75, end_of("shop:mail", "R"): 25})
    async with Browser(app) as pages:
        page = await pages.text("/queues/mail")
        assert (
            "Wait before start, p50 375 ms Wait before start, p95 488 ms Wait before start, p99 498 ms"
            in page
        )
        assert "Run, p50 7.5 ms Run, p95 9.8 ms Run, p99 10 ms" in page
        row = re.findall(r">mail</a>.*?</tr>", (await pages.get("/queues")).text, re.DOTALL)[0]
        assert "375 ms" in row
        assert "9.8 ms" in row
        page = await pages.text("/tasks")
        assert "shop:mail mail 100 25.0 % 375 ms 488 ms 498 ms 7.5 ms 9.8 ms 10 ms" in page
        assert "Tries that failed 25.0 %" in await pages.text("/tasks/shop:mail")
        assert "p50 375 ms, p99 498 ms" in await pages.text("/tasks/shop:mail")


@pytest.mark.parametrize(
    ("minutes", "succeeded", "expected"),
    [
        (0, 9, "The newest death is too recent: executors report once a minute."),
        (5, 0, "No run of the task has succeeded within the last 20 minutes."),
        (
            5,
            9,
            "9 runs of the task succeeded within the last 20 minutes, some of them perhaps before the death.",
        ),
        (20, 1, "1 run of the task succeeded within the last 20 minutes."),
    ],
)
def test_a_group_says_whether_its_task_succeeded_since_then(
    minutes: int, succeeded: int, expected: str
) -> None:
    assert since_then(minutes, succeeded) == expected


# Reading


class Reads:
    """What a Series reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[list[Piece]] = []
        monkeypatch.setattr(series, "read_pieces", self._read)

    def _read(self, app: App, pieces: Sequence[Piece]) -> Any:
        self.steps.append([*pieces])
        return read_pieces(app, pieces)

    @property
    def pieces(self) -> list[Piece]:
        return [piece for step in self.steps for piece in step]


async def look_of(app: App, known: Series, later: float = 0.0) -> Look:
    """A look at the app, so many seconds from now."""
    found = await app.client.converse(look_at(app))
    queues = {info.name: clock_moved(info, later) for info in found.queues}
    return Look(
        app, Snapshot(queues=queues, executors={}, rates={}, seconds=0.0), Kept(), known, Details(app)
    )


def clock_moved(info: QueueInfo, later: float) -> QueueInfo:
    assert info.at is not None
    return replace(info, at=clock.from_ms(round((info.at.timestamp() + later) * 1000)))


async def all_read(known: Series, look: Look, queues: Sequence[str], hours: int) -> None:
    while await known.read(look, queues, hours):
        pass


async def test_keys_are_read_in_small_steps(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, known, queues = Reads(monkeypatch), Series(app), [f"q{n}" for n in range(12)]
    await used(app, *queues)
    look = await look_of(app, known)
    unread = await known.read(look, queues, 2)
    assert (len(reads.steps), unread) == (1, 11)
    await all_read(known, look, queues, 2)
    assert max(map(len, reads.steps)) == series.STEP
    assert sorted(reads.pieces) == sorted(set(reads.pieces))
    assert len(reads.pieces) == 12 * 4
    await known.close()


async def test_what_can_change_no_more_is_read_once(
    app: App, monkeypatch: pytest.MonkeyPatch, server_clock: ServerClock
) -> None:
    # In the middle of ten minutes: no further ones begin meanwhile.
    server_clock.stop_at(server_clock.now() // WINDOW_MS * WINDOW_MS + WINDOW_MS // 2)
    reads, known = Reads(monkeypatch), Series(app)
    await used(app, "mail")
    look = await look_of(app, known)
    await all_read(known, look, ["mail"], 5)
    first = {*reads.pieces}
    assert len(first) == 5 + 2
    reads.steps.clear()
    await all_read(known, await look_of(app, known, later=series.REST / 2), ["mail"], 5)
    assert reads.steps == []
    await (await app.tasks["shop:mail"].options(delay=3600).delay(2)).cancel()
    later = await look_of(app, known, later=series.REST + 1)
    await known.read(later, ["mail"], 5)
    await aeventually(lambda: bool(reads.steps))
    await known.close()
    began = look.at.timestamp()
    changing = {piece for piece in first if piece.end + series.REPORTED > began}
    assert {*reads.pieces} & first == changing
    assert len(changing) < len(first)


async def test_queues_in_which_no_job_has_ended_are_not_read(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, known = Reads(monkeypatch), Series(app)
    await used(app, "mail")
    look = await look_of(app, known)
    await all_read(known, look, ["mail", "default"], 2)
    assert {piece.queue for piece in reads.pieces} == {"mail"}
    await known.close()


# Drawing


def test_a_small_line_is_short() -> None:
    assert spark([]) == spark([0, 0, 0]) == ""
    assert spark([0, 4, 4, 4, 2]) == "M0 18l3-16h6l3 8"
    assert len(spark([n * 37 % 60 for n in range(30)])) < 250


def test_scales_have_round_numbers() -> None:
    assert scale(0) == [0, 1]
    assert scale(600) == [0, 200, 400, 600]
    assert scale(601) == [0, 250, 500, 750]
    assert scale(0.9) == pytest.approx([0, 0.5, 1.0])
    assert scale(7) == pytest.approx([0, 2.5, 5, 7.5])


def test_a_bar_ends_where_the_next_outcome_begins() -> None:
    drawn = chart([Counts(60, 60, 0), Counts(0, 0, 120)], at=7200.0, minutes=1)
    assert drawn.unit == "per second"
    assert [line.label for line in drawn.grid] == ["0", "1", "2"]
    (ok,) = re.findall(r"M38 154v(-[\d.]+)", drawn.ok)
    (retry,) = re.findall(r"M38 ([\d.]+)v", drawn.retry)
    assert 154 + float(ok) == float(retry)
    (dead,) = re.findall(r"M399 154v(-[\d.]+)", drawn.dead)
    assert float(dead) == 2 * float(ok)
    assert drawn.label == "The runs of the last 2 m: 60 succeeded, 60 failed and are retried, 120 died"
    assert [mark.timestamp() for mark in drawn.marks][::4] == [7200 - 3 * 60, 7200 - 60]


def test_few_runs_are_counted_per_minute() -> None:
    drawn = chart([Counts(3, 0, 0), Counts(0, 0, 0)], at=7200.0, minutes=1)
    assert drawn.unit == "per minute"
    assert [line.label for line in drawn.grid] == ["0", "1", "2", "3"]


def test_a_gauge_shows_the_least_part() -> None:
    assert (part(0, 8, 72), part(1, 10_000, 72), part(8, 8, 72), part(9, 8, 72), part(1, 0, 72)) == (
        0,
        2,
        72,
        72,
        0,
    )
