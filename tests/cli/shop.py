"""A project of the user's: a folder with tasks.py, and the commands that are given in it."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from structlog.testing import capture_logs
from typer.main import get_command
from typer.testing import CliRunner

from fennelq import App
from fennelq.cli import program
from fennelq.worker.executor import Executor
from fennelq.worker.processes.config import ExecutorConfig

T = TypeVar("T")

TASKS = """
from datetime import datetime
from fennelq import App

app = App("shop")

class CardRefused(Exception): ...

@app.task(retries=0)
async def charge(n: int) -> None:
    raise CardRefused(f"no money for {n}")

@app.task(queue="mail", retries=0)
async def welcome(user_id: int, template: str = "hello") -> str:
    return f"{template} {user_id}"

@app.task(queue="mail")
async def greet(name: str, at: datetime | None = None) -> str:
    return f"hello {name} at {at}"

@app.task(retries=0)
async def shout() -> None:
    raise ValueError("\\x1b[2Jlook\\tat\\nme")
"""


class Answer(NamedTuple):
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The lines of a pipe, split at their tabs."""
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def facts(self) -> dict[str, str]:
        """The lines that consist of a name and a value."""
        return {row[0]: row[1] for row in self.rows if len(row) == 2}

    @property
    def json(self) -> Any:
        """What was printed, as JSON."""
        return json.loads(self.out)


@cache
def commands() -> Any:
    """The commands as `program` makes them for each call: this takes longer than most of them."""
    return get_command(program)


class Shop:
    """The project, its app, and its command line as in a pipe. Give commands outside of any event loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pyproject.toml").touch()
        (folder / "tasks.py").write_text(TASKS)

    @property
    def app(self) -> App:
        """The app, as commands find it."""
        if str(self.folder) not in sys.path:
            sys.path.insert(0, str(self.folder))
        app: App = importlib.import_module("tasks").app
        return app

    def run(self, *words: str, stdin: str | None = None) -> Answer:
        """`fennelq words…`."""
        with CliRunner().isolation(input=stdin) as (out, err, _):
            with pytest.raises(SystemExit) as end:
                commands().main(args=words, prog_name="fennelq")
            sys.stdout.flush()
            sys.stderr.flush()
            printed, errors = (stream.getvalue().decode().replace("\r\n", "\n") for stream in (out, err))
        assert isinstance(end.value.code, int), end.value
        return Answer(end.value.code, printed, errors)

    def ok(self, *words: str) -> Answer:
        """`fennelq words…`, which must work."""
        answer = self.run(*words)
        assert answer.code == 0, answer
        return answer

    def work(self) -> None:
        """Run every job that waits."""
        with capture_logs():
            self.do(lambda app: Executor(app, ExecutorConfig(burst=True, grace=5)).run())

    def kill(self, number: int) -> list[str]:
        """The ids of so many dead jobs."""
        ids = [self.ok("enqueue", "charge", str(n)).out.strip() for n in range(number)]
        self.work()
        return ids

    def do(self, work: Callable[[App], Awaitable[T]]) -> T:
        """What `work` answers, on a loop of its own."""

        async def inside() -> T:
            async with self.app as app:
                return await work(app)

        return asyncio.run(inside())
