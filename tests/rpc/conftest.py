"""What tests of the gRPC server may ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from fennelq import App
from fennelq.grpc.server import serving
from fennelq.web.passwords import new_token, token_hash, write
from tests.kit.apps import LocalApp
from tests.rpc.kit import Client
from tests.web.api.kit import declare
from tests.web.patience import be_patient


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis has time to reply."""
    if "impatient" not in request.fixturenames:
        be_patient(monkeypatch)


@pytest.fixture
def impatient() -> None:
    """For tests of an absent Redis: it has as much time to reply as it has for users."""


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[App]:
    """The app `shop`, with tasks."""
    made = LocalApp("shop", redis_url=redis_url)
    declare(made)
    yield made
    await made.close()
    made.blocking.close()


@pytest.fixture
async def client(app: App) -> AsyncIterator[Client]:
    """A client on this machine."""
    async with (
        serving(app, "127.0.0.1:0") as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield Client(channel)


@pytest.fixture
async def tokens(app: App, tmp_path: Path) -> AsyncIterator[dict[str, Client]]:
    """Clients with tokens of each kind of user, by the name of the user."""
    rights = {
        "all": "all",
        "read": "read",
        "reports": "send:reports:*",
        "sender": "send",
        "see": "see",
        "cancel": "cancel",
        "pause": "pause",
    }
    given = {name: new_token() for name in rights}
    for name, token in given.items():
        write(tmp_path / "tokens", name, token_hash(token), rights[name])
    async with (
        serving(app, "127.0.0.1:0", tokens=tmp_path / "tokens") as (_, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        clients = {
            name: Client(channel, (("authorization", f"Bearer {token}"),)) for name, token in given.items()
        }
        yield clients | {
            "nobody": Client(channel),
            "wrong": Client(channel, (("authorization", "Bearer fq_wrong"),)),
            "basic": Client(channel, (("authorization", "Basic eDp5"),)),
        }
