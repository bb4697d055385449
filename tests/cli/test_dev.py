"""`fennelq dev`: the worker, the dashboard and the history from one command, and the end of all of them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sqlite3
import sys
from contextlib import closing
from io import StringIO
from pathlib import Path

import httpx
import psutil
import pytest

from fennelq import ConfigurationError
from fennelq.cli import served
from fennelq.cli.dev.log import Lines, Log
from fennelq.cli.dev.part import Part
from fennelq.cli.dev.plan import Plan
from fennelq.cli.exits import Exit
from fennelq.web.ports import bound, next_free, owner
from tests.cli.shop import Shop
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.waiting import aeventually, eventually

TASKS = """
from fennelq import App

app = App("shop")


@app.task(queue="mail")
async def welcome(name: str) -> str:
    print(f"welcome, {name}, says version 1")
    return name
"""
EMBEDDED = "embedded://"
"""The server of the project. Without a URL, a process that a test has started refuses to start it."""
BUSY = 60.0
"""Seconds for a step of several processes on a busy machine."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "tasks.py").write_text(TASKS)
    return folder


def dev(spawn: Spawner, folder: Path, *words: str, **environment: str) -> Process:
    known = {"FENNELQ_REDIS_URL": EMBEDDED, **environment}
    return spawn("fennelq", "dev", "--port", "0", *words, directory=folder, environment=known)


def url_of(process: Process) -> str:
    line = process.wait_for("shows the app", within=BUSY)
    found = re.search(r"dev +\| (http://127\.0\.0\.1:\d+/) shows the app", line)
    assert found is not None
    return found[1]


def send(spawn: Spawner, folder: Path, name: str) -> None:
    known = {"FENNELQ_REDIS_URL": EMBEDDED}
    sending = spawn("fennelq", "enqueue", "welcome", name, directory=folder, environment=known)
    assert sending.returncode(BUSY) == 0, sending.text


def alive_in(folder: Path) -> list[str]:
    """The processes that are at home in a folder."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except (psutil.Error, OSError):
            continue
    return found


def pid_of(folder: Path, module: str) -> int:
    """The process of one of the two parts."""
    return next(int(one.split()[0]) for one in alive_in(folder) if module in one)


def recorded(folder: Path) -> list[tuple[str, str]]:
    """The jobs of the history."""
    with closing(sqlite3.connect(folder / ".fennelq" / "history.db")) as database:
        return database.execute("SELECT task, status FROM jobs").fetchall()


def edit(folder: Path, before: str, after: str) -> None:
    text = (folder / "tasks.py").read_text()
    assert before in text
    (folder / "tasks.py").write_text(text.replace(before, after))


# All of it


def test_one_command_runs_jobs_shows_them_and_follows_the_code(spawn: Spawner, folder: Path) -> None:
    opened = folder.parent / "opened"
    browser = folder.parent / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {opened}\n')
    browser.chmod(0o755)
    process = dev(spawn, folder, BROWSER=str(browser))
    url = url_of(process)
    with httpx.Client(base_url=url, timeout=BUSY) as http:
        assert "welcome" in http.get("/tasks").text
        send(spawn, folder, "Ada")
        process.wait_for("worker | welcome, Ada, says version 1", within=BUSY)
        process.wait_for("job_succeeded", within=BUSY)
        eventually(
            lambda: recorded(folder) == [("tasks:welcome", "SUCCESS")],
            tolerate=(sqlite3.Error,),
            within=BUSY,
        )
        assert (folder / ".fennelq" / "history.db").stat().st_mode & 0o777 == 0o600

        # A change that cannot be imported is reported, and the dashboard goes on with the code before it.
        edit(folder, "async def welcome", "async deff welcome")
        process.wait_for("web    | fennelq: tasks cannot be imported", within=BUSY)
        process.wait_for("Until then, the dashboard shows the code before the change", within=BUSY)
        assert "welcome" in http.get("/tasks").text

        edit(folder, "async deff welcome", "async def welcome")
        edit(folder, "version 1", "version 2")
        more = "\n\n@app.task\nasync def goodbye() -> None: ...\n"
        (folder / "tasks.py").write_text((folder / "tasks.py").read_text() + more)
        process.wait_for("the dashboard shows the changed code", within=BUSY)
        eventually(lambda: "goodbye" in http.get("/tasks").text, within=BUSY)
        send(spawn, folder, "Bob")
        process.wait_for("worker | welcome, Bob, says version 2", within=BUSY)
    process.interrupt()
    assert process.returncode(BUSY) == 0
    assert alive_in(folder) == []
    assert not opened.exists()
    lines = process.text.splitlines()
    assert all(re.match(r"(dev   |web   |worker) \| ", line) for line in lines), process.text
    assert lines[-1] == "dev    | everything has ended"


def test_a_process_that_dies_is_named_and_started_again(spawn: Spawner, folder: Path) -> None:
    browser = folder.parent / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {folder.parent / "opened"}\n')
    browser.chmod(0o755)
    process = dev(spawn, folder, "--open", BROWSER=str(browser))
    url = url_of(process)
    assert eventually((folder.parent / "opened").read_text, tolerate=(OSError,), within=BUSY).strip() == url
    process.wait_for("worker_started", within=BUSY)
    os.kill(pid_of(folder, "fennelq.cli.dev.page"), signal.SIGKILL)
    os.kill(pid_of(folder, "fennelq.cli.dev.worker"), signal.SIGKILL)
    process.wait_for("web ended (SIGKILL): it starts again in 0.5 s", within=BUSY)
    process.wait_for("worker ended (SIGKILL): it starts again in 0.5 s", within=BUSY)
    eventually(lambda: process.text.count("worker_started") == 2, within=BUSY)
    assert httpx.get(url, timeout=BUSY).status_code == 200
    # Without its parent, nothing goes on: not even the executors of the worker.
    process.kill()
    eventually(lambda: alive_in(folder) == [], within=BUSY)


def test_a_syntax_error_at_the_start_is_reported_once_and_waits_for_the_change(
    spawn: Spawner, folder: Path
) -> None:
    edit(folder, "async def", "async deff")
    process = dev(spawn, folder)
    process.wait_for("web ended (exit code 78): a changed source file starts it again", within=BUSY)
    assert process.text.count("tasks.py, line 8: invalid syntax") == 1, process.text
    edit(folder, "async deff", "async def")
    assert httpx.get(url_of(process), timeout=BUSY).status_code == 200
    process.wait_for("worker_started", within=BUSY)
    edit(folder, "async def", "async deff")
    process.wait_for("cannot_run", within=BUSY)  # the worker waits for a change as well
    process.term()
    assert process.returncode(BUSY) == 0
    assert alive_in(folder) == []


def test_without_redis_the_pages_say_so_and_everything_goes_on_when_it_is_back(
    spawn: Spawner, folder: Path, server: Server
) -> None:
    server.kill()
    process = dev(spawn, folder, FENNELQ_REDIS_URL=server.url)
    url = url_of(process)
    assert "comes back by itself" in httpx.get(url, timeout=BUSY).text
    process.wait_for("worker | ", within=BUSY)
    server.start()
    process.wait_for("worker_started", within=BUSY)
    assert (folder / ".fennelq" / ".gitignore").read_text() == "*\n"
    # In the middle of a reload.
    edit(folder, "version 1", "version 2")
    process.wait_for("tasks.py changed", within=BUSY)
    os.kill(process.pid, signal.SIGHUP)
    assert process.returncode(BUSY) == 0
    assert alive_in(folder) == []


def test_a_signal_while_it_starts_ends_all(spawn: Spawner, folder: Path) -> None:
    """While the code of the app is imported, which takes for ever."""
    with (folder / "tasks.py").open("a") as file:
        file.write("\nprint('importing', flush=True)\nimport time\ntime.sleep(600)\n")
    process = dev(spawn, folder)
    process.wait_for("web    | importing", within=BUSY)
    process.interrupt()
    assert process.returncode(BUSY) == 0
    assert alive_in(folder) == []


# What it refuses


def test_a_port_that_is_taken_is_an_error_that_names_the_process(shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = shop.run("dev", "--port", str(port))
    assert answer.code == Exit.CONFIGURATION
    assert f"port {port} of 127.0.0.1 is in use by process {os.getpid()} (" in answer.err
    assert "--port 0" in answer.err


def test_the_next_free_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with next_free("127.0.0.1", port) as found:
            assert port < found.getsockname()[1] <= port + 100
            assert owner(found.getsockname()[1]).startswith(f"process {os.getpid()} (")
        with pytest.raises(ConfigurationError, match="is in use by process"):
            bound("127.0.0.1", port)


def test_a_port_of_an_unknown_process_has_no_owner() -> None:
    with bound("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    assert owner(port) == ""


def test_without_the_extra_it_names_the_command_that_installs_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(name: str) -> object:
        return None if name == "jinja2" else object()

    monkeypatch.setattr(served, "find_spec", found)
    answer = shop.run("dev")
    assert answer.code == Exit.CONFIGURATION
    assert "jinja2: run pip install 'fennelq[web]'" in answer.err


# The environment of its processes


def plan_for(root: Path) -> Plan:
    return Plan(None, None, root, socket.socket(), "http://127.0.0.1/")


def test_a_project_that_has_a_history_and_a_log_format_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FENNELQ_HISTORY_URL", "FENNELQ_LOG_FORMAT"):
        monkeypatch.delenv(name, raising=False)
    found = plan_for(tmp_path).environment()
    assert found["FENNELQ_HISTORY_URL"] == f"sqlite://{tmp_path}/.fennelq/history.db"
    assert found["FENNELQ_LOG_FORMAT"] == "console"
    (tmp_path / "pyproject.toml").write_text(
        '[tool.fennelq]\nhistory_url = "sqlite:///var/lib/jobs.db"\nlog_format = "json"\n'
    )
    found = plan_for(tmp_path).environment()
    assert not found.keys() & {"FENNELQ_HISTORY_URL", "FENNELQ_LOG_FORMAT"}
    (tmp_path / "pyproject.toml").write_text("[tool.fennelq]\nhistory_url = 7\n")
    with pytest.raises(ConfigurationError, match="history_url"):
        plan_for(tmp_path).environment()


# The log


def test_each_line_has_the_name_of_its_process() -> None:
    written = StringIO()
    lines = Lines(Log(written), "web")
    lines.feed(b"one\r\ntwo\nthr")
    assert written.getvalue() == "web    | one\nweb    | two\n"
    lines.feed(b"ee\n")
    lines.feed(b"x" * 70_000)
    lines.feed(b"\xff")
    lines.close()
    assert written.getvalue().splitlines()[2:] == [
        "web    | three",
        f"web    | {'x' * 70_000}",
        "web    | \ufffd",
    ]


def test_a_log_that_cannot_be_written_stops_nothing() -> None:
    written = StringIO()
    log = Log(written)
    written.close()
    log.write("dev", "not seen")


# A process


async def test_a_process_that_ignores_signals_is_killed_by_the_third() -> None:
    text = StringIO()
    part = Part("web", Log(text), os.environ)
    code = (
        "import signal, time\nfor one in (2, 15): signal.signal(one, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\ntime.sleep(600)\n"
    )
    part.start("timeit", [f"exec({code!r})"])
    await aeventually(lambda: "deaf" in text.getvalue(), within=BUSY)
    for _ in range(3):
        assert part.code is None
        part.stop()
    await asyncio.wait_for(part.ended.wait(), BUSY)
    assert (part.code, part.fate) == (-signal.SIGKILL, "SIGKILL")


async def test_a_process_that_cannot_be_started_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    part = Part("web", Log(StringIO()), os.environ)
    before = len(psutil.Process().open_files()), psutil.Process().num_fds()
    with pytest.raises(FileNotFoundError):
        part.start("timeit", [])
    assert (len(psutil.Process().open_files()), psutil.Process().num_fds()) == before
