"""Histories for tests: an empty one in a file, and one in PostgreSQL where that is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fennelq.manage.history.postgres import PostgresStore
from fennelq.manage.history.sql import SqlStore
from fennelq.manage.history.sqlite import SqliteStore
from tests.kit.postgres import Postgres

Kinds = ("sqlite", "postgres")


@pytest.fixture(params=Kinds)
def history_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty history, of each kind."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/history.db"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_url()


Opened = Callable[..., SqlStore]


@pytest.fixture
def opened(history_url: str) -> Iterator[Opened]:
    """`opened()`: a store of this history, as another process has it."""
    stores: list[SqlStore] = []

    def opened(app: str = "shop") -> SqlStore:
        kind = history_url.partition(":")[0]
        path = Path(history_url.removeprefix("sqlite://"))
        stores.append(SqliteStore(path, app) if kind == "sqlite" else PostgresStore(history_url, app))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Opened) -> SqlStore:
    """A history without rows."""
    store = opened()
    assert store.migrate() == (0, 2)
    return store
