"""The guide to the log shows the lines that a worker really prints, on a console and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks_of
from tests.docs.terminal import UNSET, Terminal

GUIDE = DOCS / "guides/logging.md"
LOGGED_BY_WORKER = "the worker logs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The reader's project."""
    folder = tmp_path / "shop"
    folder.mkdir()
    return folder


@pytest.fixture
def terminal(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    for variable in UNSET:
        monkeypatch.delenv(variable, raising=False)
    terminal = Terminal(folder, tmp_path)
    yield terminal
    terminal.close()


@pytest.mark.timeout(400)
def test_a_reader_of_the_guide_sees_the_lines_that_it_shows(terminal: Terminal, folder: Path) -> None:
    compared: list[str] = []
    for block in blocks_of(GUIDE):
        if block.file and not block.note:
            (folder / block.file).write_text(block.text, "utf-8")
        elif block.language == "console":
            terminal.obey(block)
        elif block.note == LOGGED_BY_WORKER:
            terminal.expect_of_worker(block, block.text)
            compared.append(block.language)
    assert compared == ["text", "json"]
