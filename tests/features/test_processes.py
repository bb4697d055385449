"""Which functions can run in processes of their own; how they run is in tests/worker/test_cells.py."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from fennelq import App, ConfigurationError, ThreadTask


def square(n: int) -> int:
    return n * n


async def fetch() -> None: ...


def test_a_task_with_isolation_is_called_and_described_like_any_other() -> None:
    task = App("shop").task(isolation="process", queue="cpu", timeout=1)(square)
    assert isinstance(task, ThreadTask)
    assert task.isolated
    assert task(7) == 49
    job = task.job(7)
    assert (job.task, job.queue) == (f"{__name__}:square", "cpu")


def test_an_async_function_is_refused() -> None:
    decorate: Any = App("shop").task(isolation="process")
    with pytest.raises(
        ConfigurationError, match=r"fetch is async def.*make it a def, or leave isolation= out"
    ):
        decorate(fetch)


def test_another_isolation_is_refused() -> None:
    task: Any = App("shop").task
    with pytest.raises(ConfigurationError, match=r"isolation= is \"process\", not 'thread'"):
        task(isolation="thread")(square)


def test_a_system_without_fork_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("shop")
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigurationError, match="needs Linux or macOS, and this is win32: leave it out"):
        app.task(isolation="process")(square)


def test_a_function_of_a_program_without_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell, a notebook, `python -c`: the process of the task could not import it."""
    app = App("shop")
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.setattr(square, "__module__", "__main__")
    with pytest.raises(
        ConfigurationError, match=r"a program that has no file.* put the app and the task into a file"
    ):
        app.task(isolation="process")(square)


def test_a_function_of_a_script_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("shop")
    script = ModuleType("__main__")
    script.__file__ = "/home/me/crunch.py"
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.setattr(square, "__module__", "__main__")
    assert app.task(isolation="process")(square).name == "crunch:square"
