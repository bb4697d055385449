"""What tests of the dashboard may ask for: an app with jobs in all states, and a client of its pages."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fennelq import App
from fennelq.manage import watch
from tests.kit.apps import LocalApp
from tests.kit.server import Server
from tests.web.kit import Browser, Shop
from tests.web.patience import be_patient


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis has time to reply."""
    if "impatient" not in request.fixturenames:
        be_patient(monkeypatch)
        # A look that a busy machine delays is followed by a long pause, for which tests would wait.
        monkeypatch.setattr(watch, "SHARE", 1)


@pytest.fixture
def impatient() -> None:
    """For tests of an absent Redis: it has as much time to reply as it has for users."""


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
