"""Reload: changes of source files are noticed, at little cost."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from structlog.typing import EventDict

from fennelq.worker.processes import reload
from fennelq.worker.processes.reload import SourceWatch
from tests.kit.waiting import aeventually

Write = Callable[[str], Path]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "shop"
    root.mkdir()
    return root


@pytest.fixture
def write(project: Path) -> Write:
    """`write("shop/tasks.py")`: a file of the project."""

    def write(path: str) -> Path:
        file = project / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return file

    return write


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "LOOK_EVERY", 0.01)


def seen(watch: SourceWatch, project: Path) -> set[str]:
    return {str(Path(path).relative_to(project)) for path in watch.look()}


def test_python_files_of_the_project_are_watched_and_nothing_else(project: Path, write: Write) -> None:
    for path in ("tasks.py", "shop/mail/send.py", "readme.md", "shop/data.pyc"):
        write(path)
    assert seen(SourceWatch(project), project) == {"tasks.py", "shop/mail/send.py"}


@pytest.mark.parametrize(
    ("file", "mark"),
    [
        ("venv/lib/x.py", None),
        (".venv/lib/x.py", None),
        (".tox/py/lib/x.py", None),
        (".git/hooks/x.py", None),
        ("web/node_modules/gyp/x.py", None),
        ("env/lib/x.py", "env/pyvenv.cfg"),
        ("tools/python3/lib/deep/x.py", "tools/python3/pyvenv.cfg"),
        ("conda/lib/x.py", "conda/conda-meta/history"),
    ],
)
def test_folders_of_other_peoples_code_are_not_entered(
    project: Path, write: Write, monkeypatch: pytest.MonkeyPatch, file: str, mark: str | None
) -> None:
    write("tasks.py")
    write(file)
    if mark is not None:
        write(mark)
    entered: list[str] = []
    scandir = os.scandir

    def noted(path: Any) -> Any:
        entered.append(str(Path(path).relative_to(project)))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noted)
    assert seen(SourceWatch(project), project) == {"tasks.py"}
    assert str(Path(file).parent) not in entered


def test_a_project_that_is_itself_in_a_virtual_environment_is_watched(project: Path, write: Write) -> None:
    write("pyvenv.cfg")
    write("tasks.py")
    assert seen(SourceWatch(project), project) == {"tasks.py"}


@pytest.mark.parametrize("above", ["venv", ".work", "site-packages"])
def test_the_names_of_folders_above_the_project_mean_nothing(tmp_path: Path, above: str) -> None:
    root = tmp_path / above / "shop"
    root.mkdir(parents=True)
    (root / "tasks.py").touch()
    assert seen(SourceWatch(root), root) == {"tasks.py"}


def test_folders_that_are_linked_in_a_circle_are_no_problem(project: Path, write: Write) -> None:
    write("shop/tasks.py")
    (project / "shop" / "again").symlink_to(project)
    (project / "shop" / "self").symlink_to("self")
    assert seen(SourceWatch(project), project) == {"shop/tasks.py"}


@pytest.fixture
def imported() -> Iterator[Callable[[Path], None]]:
    """Has a module been imported from this file?"""
    names: list[str] = []

    def imported(file: Path) -> None:
        module = ModuleType(f"imported_by_test_{len(names)}")
        module.__file__ = str(file)
        sys.modules[module.__name__] = module
        names.append(module.__name__)

    yield imported
    for name in names:
        del sys.modules[name]


def test_a_module_that_was_imported_through_a_link_is_watched_and_one_of_an_environment_is_not(
    project: Path, write: Write, tmp_path: Path, imported: Callable[[Path], None]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "linked.py").touch()
    (project / "link").symlink_to(elsewhere)
    write("env/pyvenv.cfg")
    imported(project / "link" / "linked.py")
    imported(write("env/lib/library.py"))
    imported(elsewhere / "linked.py")
    assert seen(SourceWatch(project), project) == {"link/linked.py"}


async def test_new_changed_and_removed_files_are_reported_once(project: Path, write: Write) -> None:
    changed, removed = write("changed.py"), write("removed.py")
    write("same.py")
    watch = SourceWatch(project)
    os.utime(changed, ns=(1, 1))
    removed.unlink()
    new = write("new.py")
    assert await watch.changed() == {changed, removed, new}
    os.utime(new, ns=(2, 2))
    assert await watch.changed() == {new}


async def test_a_folder_that_vanishes_during_a_look_is_skipped(
    project: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = write("gone/tasks.py")
    write("tasks.py")
    watch = SourceWatch(project)
    scandir = os.scandir

    def vanished(path: Any) -> Any:
        if Path(path) == gone.parent:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanished)
    assert await watch.changed() == {gone}


async def test_want_of_file_descriptors_is_not_taken_for_a_change(
    project: Path, write: Write, monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    file = write("shop/tasks.py")
    watch = SourceWatch(project)
    scandir = os.scandir

    def refused(path: Any) -> Any:
        if Path(path) == file.parent:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    waiting = asyncio.create_task(watch.changed())
    await aeventually(lambda: any(line["event"] == "sources_not_read" for line in logged))
    assert not waiting.done()
    monkeypatch.setattr(os, "scandir", scandir)
    os.utime(file, ns=(1, 1))
    assert await waiting == {file}


async def test_looks_that_take_long_are_rare(
    project: Path, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    """So a project of any size costs a tenth of a core at most."""
    file = write("tasks.py")
    watch = SourceWatch(project)
    now, looks, pauses = 0.0, 0, list[float]()
    look = watch.look

    def slow_look() -> dict[str, int]:
        nonlocal now, looks
        now, looks = now + 3.0, looks + 1
        if looks == 3:
            os.utime(file, ns=(1, 1))
        return look()

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(watch, "look", slow_look)
    monkeypatch.setattr(reload, "clock", Clock)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert await watch.changed() == {file}
    assert pauses == [0.01, 30.0, 30.0]
