"""The app of these tests, under test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from structlog.testing import capture_logs

from fennelq.testing import Testing, testing
from tests.testing import shop


@pytest.fixture(autouse=True)
def nothing_has_run() -> None:
    shop.runs.clear()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The executors of these tests run in this process: their log is shown only when a test fails."""
    with capture_logs() as lines:
        yield
    for line in lines[-50:]:
        print(line)


@pytest.fixture
async def t() -> AsyncIterator[Testing]:
    async with testing(shop.app) as t:
        yield t
