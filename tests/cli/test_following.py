"""`fennelq job wait --follow`: a bar on a terminal, lines in a pipe, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from fennelq import Progress
from fennelq.cli.exits import Exit
from fennelq.cli.following import display, drawn
from fennelq.cli.tables.table import width
from tests.cli.shop import Shop
from tests.cli.terminal import Terminal
from tests.kit.workers import running_aside

TASKS = """
import asyncio
from fennelq import App, current_job

app = App("shop")

@app.task(queue="mail", retries=0)
async def copy(rows: int, fail: bool = False) -> str:
    for row in range(1, rows + 1):
        await current_job().progress(row, rows, "é \\x1b[2Jrows")
        await asyncio.sleep(0.3)
    if fail:
        raise ValueError("the disk is full")
    return "copied"
"""
NOTE = "é \\x1b[2Jrows"
"""As it is shown: a note cannot control the terminal."""


@pytest.fixture
def shop(shop: Shop) -> Shop:
    (shop.folder / "tasks.py").write_text(TASKS)
    return shop


@contextmanager
def working(shop: Shop) -> Generator[None]:
    """A worker that runs what was sent, and whose log is not among the output of the commands."""
    with capture_logs(), running_aside(shop.app):
        yield


def sent(shop: Shop, *words: str) -> str:
    return shop.ok("enqueue", "copy", *words).out.strip()


def test_in_a_pipe_each_report_is_a_line_on_stderr_and_the_result_is_alone(shop: Shop) -> None:
    job = sent(shop, "2")
    with working(shop):
        answer = shop.ok("job", "wait", job, "--follow")
    assert answer.out == '"copied"\n'
    assert answer.err.splitlines()[-1] == f"2 of 2 (100 %), {NOTE}"
    assert set(answer.err.splitlines()) <= {f"1 of 2 (50 %), {NOTE}", f"2 of 2 (100 %), {NOTE}"}


def test_for_programs_each_report_is_a_line_of_json_and_so_is_the_end(shop: Shop) -> None:
    job = sent(shop, "2", "true")
    with working(shop):
        answer = shop.run("job", "wait", job, "--follow", "--json")
    *reports, end = map(json.loads, answer.out.splitlines())
    last = {"id": job, "progress": {"done": 2, "total": 2, "note": "é \x1b[2Jrows"}}
    assert reports[-1] == last
    assert (answer.code, end["status"]) == (Exit.FAILED, "DEAD")
    assert "the disk is full" in end["error"]


@pytest.mark.parametrize("columns", [60, 120])
def test_on_a_terminal_a_bar_grows_in_one_line(shop: Shop, columns: int) -> None:
    job = sent(shop, "2")
    with working(shop):
        terminal = Terminal("job", "wait", job, "--follow", folder=shop.folder, columns=columns)
        terminal.shows("copied")
        assert terminal.code() == 0
    bars = [part for part in terminal.text.replace("\x1b[K", "").split("\r") if part.startswith("[")]
    assert bars[-1].endswith(f"2 of 2  {NOTE}")
    assert "#] 100 %" in bars[-1]
    assert all(width(bar) < columns for bar in bars)
    assert terminal.text.endswith('\r\n"copied"\r\n')


def test_a_dumb_terminal_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = display("mail:1", as_json=False)
    shown.show(Progress(1, 2, "rows"))
    assert not shown.close()
    assert capsys.readouterr().err == "1 of 2 (50 %), rows\n"


def test_show_prints_the_progress(shop: Shop) -> None:
    job = sent(shop, "1")
    assert shop.ok("job", "show", job, "--json").json["progress"] is None
    assert "progress" not in shop.ok("job", "show", job).facts
    with working(shop):
        shop.ok("job", "wait", job)
    assert shop.ok("job", "show", job, "--json").json["progress"] == {
        "done": 1,
        "total": 1,
        "note": "é \x1b[2Jrows",
    }
    assert shop.ok("job", "show", job).facts["progress"] == f"1 of 1 (100 %), {NOTE}"


def test_show_follows_the_progress_as_well(shop: Shop) -> None:
    job = sent(shop, "2")
    with working(shop):
        answer = shop.ok("job", "show", job, "--follow")
    assert answer.err.splitlines()[-1] == f"2 of 2 (100 %), {NOTE}"
    assert answer.out.splitlines()[-1] == 'result\t"copied"'
    again = sent(shop, "1", "true")
    with working(shop):
        records = shop.run("job", "show", again, "--follow", "--json")
    assert records.code == Exit.FAILED
    *changes, everything = map(json.loads, records.out.splitlines())
    assert {"id": again, "progress": {"done": 1, "total": 1, "note": "é \x1b[2Jrows"}} in changes
    assert everything["status"] == "DEAD"
    assert everything["story"]["sentence"].startswith("It died after 1 try: ValueError: the disk is full. ")


@pytest.mark.parametrize("columns", [60, 120])
def test_on_a_terminal_the_story_and_the_bar_do_not_share_a_line(shop: Shop, columns: int) -> None:
    job = sent(shop, "3")
    with working(shop):
        terminal = Terminal("job", "show", job, "--follow", folder=shop.folder, columns=columns)
        terminal.shows('"copied"', within=60)
        assert terminal.code() == 0
    lines = terminal.text.replace("\x1b[K", "").replace("\r\n", "\n").splitlines()
    assert any(line.lstrip("\r").startswith("[#") and "3 of 3" in line for line in lines)
    assert not any("#]" in line and "Succeeded" in line for line in lines)
    assert sum("Succeeded after" in line for line in lines) == 1


def test_following_gives_up_after_its_timeout_and_knows_unknown_jobs(shop: Shop) -> None:
    job = sent(shop, "1")
    answer = shop.run("job", "wait", job, "--follow", "--timeout", "100ms")
    assert answer.code == Exit.TIMED_OUT
    assert "has not ended after 0.1 s" in answer.err
    assert shop.run("job", "wait", "mail:unknown", "--follow").code == Exit.NOT_FOUND


@pytest.mark.parametrize(
    ("progress", "columns", "line"),
    [
        (Progress(3, 10, "rows"), 60, "[#####--------------]  30 %  3 of 10  rows"),
        (Progress(0, 10), 60, "[-------------------]   0 %  0 of 10"),
        (Progress(10, 10), 60, "[###################] 100 %  10 of 10"),
        (Progress(999_999, 1_000_000), 60, "[##################-]  99 %  999,999 of 1,000,000"),
        (Progress(0, 0), 60, "[###################] 100 %  0 of 0"),
        (Progress(1234), 60, "1,234"),
        (Progress(0.5, None, "of the way"), 60, "0.5  of the way"),
        (Progress(1.5, 3.0, "n" * 200), 60, f"[#########----------]  50 %  1.5 of 3  {'n' * 19}…"),
        (Progress(1, 2, "日本" * 100), 60, f"[#########----------]  50 %  1 of 2  {'日本' * 5}…"),
        (Progress(3, 10, "rows"), 120, f"[{'#' * 11}{'-' * 28}]  30 %  3 of 10  rows"),
        (Progress(3, 10, "n" * 200), 120, f"[{'#' * 11}{'-' * 28}]  30 %  3 of 10  {'n' * 60}…"),
        (Progress(3, 10, "rows of it"), 30, "[###-------]  30 %  3 of 10"),
        (Progress(10**15, 10**16), 20, "[#---------]  10 %…"),
        (Progress(1, 2, "a\nb\x1b[2J"), 60, "[#########----------]  50 %  1 of 2  a\\nb\\x1b[2J"),
    ],
)
def test_the_line_fits_the_terminal(progress: Progress, columns: int, line: str) -> None:
    assert drawn(progress, columns) == line
    assert width(drawn(progress, columns)) < columns
