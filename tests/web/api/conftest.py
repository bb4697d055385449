"""What tests of the HTTP API may ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fennelq import App
from tests.kit.apps import LocalApp
from tests.web.api.kit import Program, declare


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[App]:
    """The app `shop`, with tasks."""
    made = LocalApp("shop", redis_url=redis_url)
    declare(made)
    yield made
    await made.close()
    made.blocking.close()


@pytest.fixture
async def program(app: App) -> AsyncIterator[Program]:
    """A program on this machine."""
    async with Program(app) as made:
        yield made
