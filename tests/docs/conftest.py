"""What the tests of pages may ask for: a reader who does what a page shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks_of
from tests.docs.prompt import compiled
from tests.docs.terminal import UNSET, Terminal

LOGGED_BY_WORKER = "the worker logs"
NOT_RUN = "not run: "


class Reader:
    """Follows pages from their first block to their last."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def follow(self, *pages: Path) -> None:
        """Save the files, enter the Python, type the commands, and compare what is printed."""
        for block in (block for page in pages for block in blocks_of(page)):
            self._obey(block)

    @property
    def worker_log(self) -> str:
        """What the worker has printed so far."""
        return self._terminal.worker_log

    def _obey(self, block: Block) -> None:
        if block.language == "python":
            compiled(block.text, str(block.page), block.line)  # also what is not run must be Python
        if block.note.startswith(NOT_RUN):
            return
        if block.note == LOGGED_BY_WORKER:
            self._terminal.expect_of_worker(block, block.text)
        elif block.file:
            self._terminal.write(block)
        elif block.language == "python":
            self._terminal.execute(block)
        elif block.language == "console":
            self._terminal.obey(block)


@pytest.fixture(autouse=True)
def not_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in UNSET:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Reader]:
    """A reader with an empty folder and no Redis, who starts what a page names and nothing else."""
    yield from readers(tmp_path, Terminal(folder_in(tmp_path), tmp_path))


@pytest.fixture
def reader(tmp_path: Path, redis_url: str) -> Iterator[Reader]:
    """A reader with a Redis, who starts a worker as soon as the page has shown an app."""
    environment = {"FENNELQ_REDIS_URL": redis_url}
    yield from readers(
        tmp_path, Terminal(folder_in(tmp_path), tmp_path, environment=environment, serves=True)
    )


def readers(outputs: Path, terminal: Terminal) -> Iterator[Reader]:
    yield Reader(terminal)
    terminal.close()


def folder_in(tmp_path: Path) -> Path:
    """The project's, away from what its processes print."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    return folder
