"""What tests of the command line may ask for: a project, in whose folder they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fennelq import log
from tests.cli.shop import Shop
from tests.kit.modules import forgotten


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; its modules are forgotten after the test."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with forgotten(folder):
        yield folder


@pytest.fixture
def shop(folder: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A project whose Redis is this test's. Its commands leave the log of this process alone: they print to files
    that are closed when they end, and loggers stay."""
    monkeypatch.setattr(log, "setup", ignore)
    monkeypatch.setenv("FENNELQ_REDIS_URL", redis_url)
    return Shop(folder)


def ignore(*_: object, **__: object) -> None:
    """Do nothing."""
