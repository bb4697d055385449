"""The screen of `fennelq top`: what each view shows, where its rows lead, and what happens when Redis is away."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import pytest
from structlog.testing import capture_logs

from fennelq import App, current_job
from fennelq.broker.trouble import ReplyError
from fennelq.cli.commands import top as command
from fennelq.cli.exits import Exit
from fennelq.cli.tables.table import width
from fennelq.cli.top.once import printed, written
from fennelq.cli.top.views import QueuesView
from tests.cli import test_hostile as hostile
from tests.cli.screens import Person, before_the_screen
from tests.cli.screens import quick as quick
from tests.cli.shop import Shop
from tests.cli.terminal import Terminal
from tests.kit.apps import LocalApp
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

SECRET = "xyzzy-4929"


class Fleet:
    """An app with jobs of every kind, and a worker in this process."""

    def __init__(self, redis_url: str) -> None:
        self.app = app = LocalApp("shop", redis_url=redis_url, enqueue_timeout=2)
        self.release = asyncio.Event()

        @app.task(name="shop:charge", queue="cards", retries=0)
        async def charge(n: int, card: str = "") -> None:
            raise ValueError(f"[red]no money[/red] for {n}")

        @app.task(name="shop:resize", queue="images")
        async def resize(name: str, token: str = "") -> None:
            await current_job().progress(3, 10, "tiles")
            await self.release.wait()

        self.charge, self.resize = charge, resize

    async def fill(self) -> None:
        """Three dead jobs, two that run, two that wait, and one that is due tomorrow."""
        for n in range(3):
            await self.charge.options(job_id=f"dead{n}").delay(n, SECRET)
        for n in range(2):
            await self.resize.options(job_id=f"run{n}").delay(f"{n}.png", SECRET)
        await aeventually(self._is_filled)
        await self.app.queues.pause("cards", only="consume", why="the bank is closed", who="ada@web-1")
        for n in range(2):
            await self.charge.options(job_id=f"wait{n}").delay(n, SECRET)
        await self.charge.options(job_id="later", delay=timedelta(days=1)).delay(9)

    async def _is_filled(self) -> bool:
        cards, images = await self.app.queues.info("cards"), await self.app.queues.info("images")
        reported = [job.progress for job in await self.app.queues.running("images")]
        return cards.dead == 3 and images.running == 2 and all(reported)


@pytest.fixture
async def fleet(redis_url: str) -> AsyncIterator[Fleet]:
    """It ends its jobs at the end of the test."""
    fleet = Fleet(redis_url)
    with capture_logs():
        async with fleet.app, running(fleet.app):
            await fleet.fill()
            yield fleet
            fleet.release.set()


@asynccontextmanager
async def person(fleet: Fleet, **how: int) -> AsyncGenerator[Person]:
    async with before_the_screen(fleet.app, **how) as one:
        yield one


pytestmark = pytest.mark.audit(unfinished=True)


# Views


@pytest.mark.parametrize("columns", [60, 120])
@pytest.mark.usefixtures("quick")
async def test_the_first_line_is_a_sentence_and_every_view_fits(fleet: Fleet, columns: int) -> None:
    async with person(fleet, columns=columns) as one:
        await one.sees("new error", "paused")

        def first() -> str:
            return " ".join(line.strip() for line in one.lines[: 3 if columns == 60 else 1])

        died = "3 jobs of shop:charge died of ValueError: [red]no money[/red] for 0 (and 1 more)."
        await aeventually(lambda: died in first())  # the screen is laid out once more for a longer sentence
        assert first().startswith("New error, first ")
        for key, sights in {
            "2": ("QUEUE", "cards", "images", "paused"),
            "3": ("FOR", "images:run0", "images:run1"),
            "4": ("JOBS", "shop:charge", "ValueError"),
            "1": ("WHAT", "new error", "executor"),
        }.items():
            await one.press(key)
            text = await one.sees(*sights, "? help", "q quit")
            assert all(width(line) <= columns for line in text.splitlines())
            assert len(text.splitlines()) == 40


@pytest.mark.usefixtures("quick")
async def test_a_line_of_numbers_that_is_too_long_shows_that_it_is_cut(fleet: Fleet) -> None:
    async with person(fleet, columns=60) as one:
        text = await one.sees("2 waiting · 2 of 8 running · 1 later · 3 dead · ")
        (line,) = (line for line in text.splitlines() if " waiting · " in line)
        assert line.endswith("…")


@pytest.mark.usefixtures("quick")
async def test_the_queues_have_their_numbers(fleet: Fleet) -> None:
    async with person(fleet) as one:
        await one.press("2")
        text = await one.sees("cards", "3 dead")
        assert "2 waiting · 2 of 8 running · 1 later · 3 dead" in text
        (cards,) = [line.split() for line in text.splitlines() if line.strip().startswith("cards ")]
        assert cards[:6] == ["cards", "2", "0", "1", "0", "3"]
        assert cards[-1] == "paused"
        assert "the bank is closed" in text, "the text of the row at the cursor"


@pytest.mark.usefixtures("quick")
async def test_from_a_cause_of_death_to_its_jobs_to_the_story_of_one_and_back(fleet: Fleet) -> None:
    async with person(fleet) as one:
        await one.press("4")
        await one.sees("[red]no money[/red] for")
        await one.press("enter")
        await one.sees("dead › fp:", "cards:dead2", "cards:dead0", "1 of 3")
        await one.press("enter")
        text = await one.sees(
            "job cards:dead2", "It died after 1 try: ValueError: [red]no money[/red] for 2."
        )
        assert "raise ValueError" in text, "the traceback"
        await one.press("pagedown")
        assert SECRET not in await one.sees('[[2,"[redacted]"],{}]')
        await one.press("escape")
        await one.sees("dead › fp:")
        await one.press("escape")
        await one.sees("FINGERPRINT")


@pytest.mark.usefixtures("quick")
async def test_from_a_queue_to_its_jobs_and_by_a_filter_to_others(fleet: Fleet) -> None:
    async with person(fleet) as one:
        await one.press("2")
        await one.sees("cards")
        await one.press("enter")
        await one.sees("jobs queue:cards", "cards:wait0", "cards:later", "scheduled", "1 of 6")
        await one.press("slash")
        await one.sees("Find jobs", "queue:cards")
        await one.type("state:waiting")
        await one.press("enter")
        await one.sees("queue:cards state:waiting", "cards:wait1", "1 of 2")
        await one.press("slash")
        await one.type("nosuch:word")
        await one.press("enter")
        await one.sees("unknown filter word")
        await one.press("escape")
        await one.press("slash", *["backspace"] * 40)
        await one.type("cards:later")
        await one.press("enter")
        await one.sees("job cards:later", "It is scheduled, due in 24 h")


@pytest.mark.usefixtures("quick")
async def test_the_jobs_of_an_executor(fleet: Fleet) -> None:
    async with person(fleet) as one:
        await one.sees("executor")
        await one.press("end", "enter")
        await one.sees("jobs state:running on:", "images:run0", "images:run1", "1 of 2")


@pytest.mark.usefixtures("quick")
async def test_a_list_is_sorted_by_any_column_and_the_cursor_stays_at_its_row(fleet: Fleet) -> None:
    def queues() -> list[str]:
        return [
            word
            for line in one.lines
            if (word := (line.split() or [""])[0]) in ("cards", "default", "images")
        ]

    async with person(fleet) as one:
        await one.press("2")
        await one.sees("cards")
        # idle queues come last
        await aeventually(lambda: queues() == ["cards", "images", "default"])
        await one.press("down")
        await one.sees("2 of 3")
        await one.press("s")
        await one.sees("QUEUE ▼", "3 of 3")
        await aeventually(lambda: queues() == ["cards", "default", "images"])
        await one.press("S")
        await one.sees("QUEUE ▲", "1 of 3")
        await aeventually(lambda: queues() == ["images", "default", "cards"])
        await one.press("s", "s")
        await one.sees("RUNNING ▼", "1 of 3")
        await aeventually(lambda: queues()[:1] == ["images"])


@pytest.mark.usefixtures("quick")
async def test_help_shows_every_key(fleet: Fleet) -> None:
    async with person(fleet, columns=60) as one:
        await one.press("question_mark")
        text = await one.sees("Keys", "pause a queue")
        for key in ("1 2 3 4", "enter", "esc", "/", "s S", "p r", "c C", "R A", "q"):
            assert f"│ {key}" in text


# Safety


@pytest.mark.usefixtures("quick")
async def test_no_view_shows_a_secret(fleet: Fleet) -> None:
    async with person(fleet, columns=200) as one:
        seen = ""
        for keys in (("1",), ("2",), ("enter",), ("3",), ("enter",), ("4",), ("enter",), ("enter",)):
            await one.press(*keys)
            await one.sees_no("Looking …")
            seen += one.text + one.top.export_screenshot()
        await one.press("R")
        seen += await one.sees("Replay job")
        await one.press("escape", "2", "enter")
        await one.sees("cards:wait0")
        await one.press("C")
        seen += await one.sees("Cancel 3 jobs?", "cards:wait1")
        await one.press("escape")
    assert "[redacted]" in seen
    assert SECRET not in seen


@pytest.mark.audit(skip="the keys are hostile")
@pytest.mark.usefixtures("quick")
async def test_hostile_texts_are_escaped_cut_and_never_obeyed(redis_url: str) -> None:
    fleet = Fleet(redis_url)
    app = fleet.app

    @app.task(name="tasks:welcome", queue="mail")
    async def welcome(n: int) -> None: ...

    @app.task(name="tasks:fail", retries=0)
    async def fail(n: int) -> None:
        raise ValueError(n)

    with capture_logs():
        async with app:
            dead = await fail.options(job_id="dead").delay(1)
            async with running(app):
                await aeventually(lambda: is_dead(app, dead.id))
            for key in ("running", "ready"):
                await welcome.options(job_id=key).delay(1)
            await welcome.options(job_id="later", delay=3600).delay(1)
            await app.schedules.add(welcome.job(1), every=3600, name="nightly")
            await hostile.spoil(app)
            for columns in (60, 120):
                async with before_the_screen(app, columns=columns) as one:
                    await look_at_all(one, columns)


async def is_dead(app: App, job: str) -> bool:
    info = await app.client.info(job)
    return info is not None and info.status.ended


async def look_at_all(one: Person, columns: int) -> None:
    """Go through every view and dialog."""
    await one.sees_no("Looking …")
    views: dict[str, tuple[tuple[str, ...], ...]] = {
        "overview": (("1",), ("end",), ("enter",)),
        "queues": (("2",), ("down",), ("p",), ("escape",), ("home",), ("p",), ("escape",), ("enter",)),
        "running": (("3",), ("c",), ("escape",), ("enter",), ("pagedown",)),
        "dead": (("4",), ("R",), ("escape",), ("enter",), ("enter",), ("pagedown",), ("end",)),
        "jobs": (("slash",), ("enter",), ("enter",), ("C",), ("escape",)),
    }
    shown = ""
    for steps in views.values():
        for keys in steps:
            await one.press(*keys)
            await one.sees_no("Looking …")
            await one.sees_no("Counting")
            lines = one.lines
            assert all(hostile.unsafe(line) == set() for line in lines)
            assert all(width(line) <= columns for line in lines)
            assert len(lines) == 40
            shown += one.text
    assert "31m\\u202eevil" in shown
    assert "{tag}" in shown


async def look_at_the_queues(fleet: Fleet) -> None:
    async with person(fleet) as one:
        await one.sees("overview")
        await one.press("2")
        await aeventually(lambda: one.top.failure is not None)


async def test_a_mistake_of_this_program_does_not_show_the_values_of_variables(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(*_: object) -> Any:
        secret = SECRET
        raise RuntimeError(f"a mistake of {len(secret)}")

    monkeypatch.setattr(QueuesView, "rows", rows)
    with pytest.raises(RuntimeError, match=f"a mistake of {len(SECRET)}"):
        await look_at_the_queues(fleet)
    out = capsys.readouterr()
    assert SECRET not in out.out + out.err


# Redis


@pytest.mark.usefixtures("quick")
async def test_while_redis_is_away_the_last_picture_stays_and_it_comes_back(
    server: Server, proxy: Proxy
) -> None:
    fleet = Fleet(server.url)
    with capture_logs():
        async with fleet.app, running(fleet.app):
            await fleet.fill()
            away = LocalApp("shop", redis_url=proxy.url, enqueue_timeout=0.2)
            async with away, before_the_screen(away) as one:
                await one.press("2")
                await one.sees("images", "paused")
                proxy.refuse()
                text = await one.sees("No news since ", "the picture is of ")
                assert "images" in text
                assert "paused" in text
                await one.press("4")
                await one.sees("No news since ", "Looking …")
                proxy.up()
                await one.sees("New error, first ", "[red]no money[/red] for")
            fleet.release.set()


@pytest.mark.usefixtures("quick")
async def test_what_the_user_of_redis_may_not_read_is_unknown(fleet: Fleet, server: Server) -> None:
    """One queue, and the executors."""
    with server.client() as client:
        client.execute_command(
            *(
                "ACL",
                "SETUSER",
                "few",
                "on",
                ">pw",
                "+@all",
                "&*",
                "~fq:{shop/images}*",
                "~fq:{shop}:[a-df-z]*",
            ),
        )
        app = LocalApp("shop", redis_url=server.url.replace("redis://", "redis://few:pw@"))
        try:
            async with app, before_the_screen(app) as one:
                text = await one.sees("executors", "queue cards is unknown: ")
                (executors,) = [line.split() for line in text.splitlines() if line.startswith(" executors ")]
                assert executors == ["executors", "unknown"]
                await one.press("2")
                text = await one.sees("images")
                (cards,) = [line.split() for line in text.splitlines() if line.strip().startswith("cards")]
                assert cards == ["cards", "unknown", "unknown"]
                await one.press("3")
                await one.sees("images:run0")
        finally:
            client.execute_command("ACL", "DELUSER", "few")


# Starting


def test_without_textual_it_says_what_to_install(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> Any:
        return None if name == "textual" else find_spec(name)

    monkeypatch.setattr(command, "find_spec", found)
    answer = shop.run("top")
    assert answer.code == Exit.CONFIGURATION
    assert "pip install 'fennelq[top]'" in answer.err
    assert shop.ok("top", "--once").out.startswith("attention\tNothing needs attention: ")


def test_without_a_terminal_it_says_what_to_add(shop: Shop) -> None:
    answer = shop.run("top")
    assert answer.code == Exit.USAGE
    assert "add --once" in answer.err


@pytest.mark.parametrize("words", [("--once",), ("--once", "--json")], ids=" ".join)
def test_without_the_screen_no_textual_is_imported(shop: Shop, words: tuple[str, ...]) -> None:
    code = (
        "import sys; from fennelq.cli import program\n"
        "try: program(['top', *sys.argv[1:]])\n"
        "finally: print([name for name in sys.modules if name.startswith('textual')], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=shop.folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")


async def test_a_document_per_look_has_what_the_screen_shows(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    await written(fleet.app, once=True)
    document = json.loads(capsys.readouterr().out)
    assert document["sentence"].startswith("New error, first ")
    assert [(need["kind"], need["urgency"], need["of"]) for need in document["attention"]] == [
        ("new error", "urgent", "group"),
        ("paused", "note", "queue"),
    ]
    assert {queue["name"]: queue["dead"] for queue in document["queues"]} == {
        "cards": 3,
        "default": 0,
        "images": 0,
    }
    assert {job["id"]: job["progress"]["note"] for job in document["running"]} == {
        "images:run0": "tiles",
        "images:run1": "tiles",
    }
    assert [(group["jobs"], group["task"]) for group in document["dead"]] == [(3, "shop:charge")]
    assert [executor["state"] for executor in document["executors"]] == ["works"]
    assert document["unknown"] == {}


async def test_once_prints_lines_that_begin_with_what_they_are_about(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    await printed(fleet.app)
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == [
        *("attention", "numbers", "overview", "overview", "overview"),
        *("queue", "queue", "queue", "running", "running", "dead"),
    ]
    assert rows[1][1] == "2 waiting · 2 of 8 running · 1 later · 3 dead"
    assert rows[5][:7] == ["queue", "cards", "2", "0", "1", "0", "3"]
    assert rows[-1][1:4] == ["3", "shop:charge", "ValueError"]


async def test_once_says_which_running_jobs_it_could_not_read(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(keys: object, limit: int) -> Iterator[Any]:
        yield from ()
        raise ReplyError("WRONGTYPE damaged")

    monkeypatch.setattr("fennelq.manage.overview.longest", refuse)
    await printed(fleet.app)
    assert "running jobs of images unknown: Redis replied WRONGTYPE damaged" in capsys.readouterr().out
    await written(fleet.app, once=True)
    document = json.loads(capsys.readouterr().out)
    assert document["unknown"] == {"running jobs of images": "Redis replied WRONGTYPE damaged"}
    assert document["attention"][-1]["kind"] == "unknown"


@pytest.mark.usefixtures("quick")
async def test_documents_go_on_when_redis_was_away(
    fleet: Fleet, proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    out = err = ""

    def lines() -> int:
        nonlocal out, err
        read = capsys.readouterr()
        out, err = out + read.out, err + read.err
        return len(out.splitlines())

    async with LocalApp("shop", redis_url=proxy.url, enqueue_timeout=2) as away:
        writing = asyncio.create_task(written(away, once=False))
        await aeventually(lambda: lines() > 1)
        proxy.refuse()
        await aeventually(lambda: lines() and "goes on when Redis is reachable again" in err)
        before = lines()
        proxy.up()
        await aeventually(lambda: lines() > before + 1)
        writing.cancel()
        await asyncio.wait([writing])
    assert err.count("goes on when") == 1
    assert all(json.loads(line)["app"] == "shop" for line in out.splitlines())


# A real terminal


def test_on_a_terminal_two_times_q_leaves_it_as_it_was(shop: Shop) -> None:
    terminal = Terminal("top", folder=shop.folder, columns=100, TERM="xterm-256color")
    terminal.shows("attention")
    terminal.type("q")
    terminal.shows("Leave")
    terminal.type("q")
    assert terminal.code() == 0
    assert restored(terminal.text)


@pytest.mark.parametrize("number", [2, 15, 1], ids=["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_leaves_the_terminal_as_it_was(shop: Shop, number: int) -> None:
    terminal = Terminal("top", folder=shop.folder, columns=100, TERM="xterm-256color")
    terminal.shows("attention")
    os.kill(terminal.pid, number)
    assert terminal.code() == Exit.INTERRUPTED
    assert restored(terminal.text)


def restored(text: str) -> bool:
    """Whether the program has left the second screen, and shows the cursor again."""
    return text.rfind("\x1b[?1049l") > text.rfind("\x1b[?1049h") and text.rfind("\x1b[?25h") > text.rfind(
        "\x1b[?25l"
    )
