"""What tests of the dashboard may ask for: an app with jobs in all states, and a client of its pages."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fennelq import App
from tests.kit.apps import LocalApp
from tests.kit.server import Server
from tests.web.kit import Browser, Shop
from tests.web.patience import be_patient


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis has time to reply. Tests of an absent Redis replace this fixture."""
    be_patient(monkeypatch)


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[App]:
    """The app `shop`, without tasks."""
    made = LocalApp("shop", redis_url=redis_url)
    yield made
    await made.close()
    made.blocking.close()


@pytest.fixture
async def shop(app: App, server: Server) -> Shop:
    """The app with jobs in all states."""
    shop = Shop(app, server)
    await shop.fill()
    return shop


@pytest.fixture
async def pages(app: App) -> AsyncIterator[Browser]:
    """The pages of the app, for a user of this machine."""
    async with Browser(app) as browser:
        yield browser
