"""The app whose jobs worker processes run in tests. What they do, they write to the ledger of the test."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fennelq import App, current_job
from tests.kit.apps import LocalApp
from tests.kit.ledger import LEDGER_VARIABLE, Ledger

NAME = "shop"
_POLL = 0.01


class Gate:
    """A file that jobs of any process wait for."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def is_open(self) -> bool:
        return self.path.exists()

    def open(self) -> None:
        self.path.touch()


@contextmanager
def written_down() -> Generator[None]:
    """A run; its end is written when nothing was raised, and its try in either case."""
    ledger = Ledger.inherited() if LEDGER_VARIABLE in os.environ else None
    job = current_job()
    if ledger is not None:
        ledger.start(job.id, str(job.fence), str(job.tries))
    yield
    if ledger is not None:
        ledger.end(job.id, str(job.fence), str(job.tries))


async def double(n: int) -> int:
    """The shortest job."""
    with written_down():
        return 2 * n


async def nap(seconds: float) -> None:
    """A job that takes a while."""
    with written_down():
        await asyncio.sleep(seconds)


async def hold(gate: str) -> int:
    """Waits at a gate; answers which try it was."""
    with written_down():
        while not Gate(gate).is_open:  # noqa: ASYNC110 – another process opens it
            await asyncio.sleep(_POLL)
    return current_job().tries


def hold_in_thread(gate: str) -> int:
    """Waits at a gate, in a thread."""
    with written_down():
        while not Gate(gate).is_open:
            time.sleep(_POLL)
    return current_job().tries


async def refuse_to_stop(gate: str) -> int:
    """Waits at a gate whatever happens."""
    with written_down():
        while not Gate(gate).is_open:
            try:
                await asyncio.sleep(_POLL)
            except asyncio.CancelledError:
                continue
    return current_job().tries


async def fail_when_stopped(gate: str) -> int:
    """Makes an error of its cancellation, as many libraries do."""
    with written_down():
        while not Gate(gate).is_open:
            try:
                await asyncio.sleep(_POLL)
            except asyncio.CancelledError:
                raise ConnectionError("lost in between") from None
    return current_job().tries


async def follow(n: int) -> None:
    """Sends the next of a chain of jobs."""
    with written_down():
        if n:
            await current_app().tasks[f"{__name__}:follow"].delay(n - 1)


async def whisper(secret: str, answer: str, fail: bool = False) -> str:
    """A job whose arguments and result are secret."""
    with written_down():
        if fail:
            raise ValueError(f"{secret} is not {answer}")
        return answer


FUNCTIONS = (
    double,
    nap,
    hold,
    hold_in_thread,
    refuse_to_stop,
    fail_when_stopped,
    follow,
    whisper,
)

_apps: list[App] = []


def current_app() -> App:
    """The app that was made last."""
    return _apps[-1]


def app_of(**settings: Any) -> App:
    """The app with settings of its own."""
    app = LocalApp(NAME, **settings)
    for function in FUNCTIONS:
        app.task(retries=0)(function)
    _apps.append(app)
    return app


def with_tasks_of(other: App, **settings: Any) -> App:
    """The app with settings of its own, and with the tasks of another one."""
    app = app_of(**settings)
    for name, task in other.tasks.items():
        if name not in app.tasks:
            app.task(name=name)(task.function)
    return app


def task_of(app: App, function: Any) -> Any:
    """The task that a function of this module is in an app."""
    return app.tasks[f"{__name__}:{function.__name__}"]


app = app_of()
