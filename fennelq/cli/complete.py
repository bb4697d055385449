"""Shell completion. Names come from the code of the app and not from Redis, because a key press must not wait for
Redis."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from fennelq.app import App


def words(*choices: str) -> Callable[[str], list[str]]:
    """Completes one of these words."""

    def matching(incomplete: str) -> list[str]:
        return _beginning(choices, incomplete)

    return matching


def tasks(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes the name of a task. It uses only the function if that is unique, because bash treats `:` as the end of
    a word."""
    app = _app(ctx)
    if app is None:
        return []
    if ":" in incomplete:
        return _beginning(app.tasks, incomplete)
    functions = [name.rpartition(":")[2] for name in app.tasks]
    return _beginning((name for name in functions if functions.count(name) == 1), incomplete)


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes the name of a queue that the app's code names."""
    app = _app(ctx)
    if app is None:
        return []
    return _beginning({app.settings.default_queue, *(task.queue for task in app.tasks.values())}, incomplete)


def schedules(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes the name of a schedule that the app's code declares."""
    app = _app(ctx)
    return [] if app is None else _beginning(app.declared.schedules, incomplete)


def limits(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes the name of a limit that the app's code declares."""
    app = _app(ctx)
    if app is None:
        return []
    declared = (task.limits.definitions.values() for task in app.tasks.values() if task.limits is not None)
    return _beginning({limit.name for limits in declared for limit in limits}, incomplete)


def _beginning(choices: Iterable[str], incomplete: str) -> list[str]:
    return sorted(choice for choice in choices if choice.startswith(incomplete))


def _app(ctx: typer.Context) -> App | None:
    """The app of the command line so far, or None. Errors are ignored: a completion must not print them."""
    from fennelq.worker.processes.discovery import find_app

    folder = ctx.params.get("app_dir")
    try:
        with (
            Path(os.devnull).open("w", encoding="utf-8") as null,
            redirect_stdout(null),
            redirect_stderr(null),
        ):
            return find_app(ctx.params.get("app"), Path(folder) if folder else None).app
    except Exception:
        return None
