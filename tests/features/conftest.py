"""What a feature's test needs: an app with a Redis of its own. Its worker is `running(app)`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from fennelq import App
from fennelq.broker.keys import clock_key
from fennelq.testing import Testing, testing
from tests.conftest import audit_hook
from tests.kit.apps import LocalApp
from tests.kit.server import Server

MakeApp = Callable[..., App]

IMPATIENT: Final[dict[str, Any]] = {"schedule_interval": 0.02, "heartbeat_interval": 0.1}
"""Look often for jobs that have become due and for queues that have turned up."""


@pytest.fixture
async def make_app(redis_url: str) -> AsyncIterator[MakeApp]:
    """`make_app(result_ttl=1)`: the app "shop" with these settings, for tests that are coroutines."""
    made: list[App] = []

    def make(name: str = "shop", **settings: Any) -> App:
        options: dict[str, Any] = {"redis_url": redis_url, **IMPATIENT, **settings}
        app = LocalApp(name, **options)
        made.append(app)
        return app

    yield make
    for app in made:
        await app.close()
        app.blocking.close()


@pytest.fixture
def app(make_app: MakeApp) -> App:
    """An app without tasks yet."""
    return make_app()


@pytest.fixture
async def t(app: App, server: Server, request: pytest.FixtureRequest) -> AsyncIterator[Testing]:
    """`app` under test: its jobs run with `await t.run_until_idle()`, and its time passes with `t.tick(60)`. What it
    leaves in Redis is audited before it is removed."""
    async with testing(app, redis_url=server.url, leave_jobs=True) as t:
        yield t
        with server.client() as client:
            client.delete(clock_key(app.namespace))
        audit_hook(server, request.node)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The workers of these tests run in this process: their log is shown only when a test fails."""
    with capture_logs() as lines:
        yield
    for line in lines[-50:]:
        print(line)


def waiters_on(server: Server) -> int:
    """How many connections listen to a channel of results. Executors listen to other channels."""
    with server.client() as client:
        channels: Any = client.pubsub_channels("fq:{*}:c:*")
        counts: Any = client.pubsub_numsub(*channels) if channels else []
    return sum(count for _, count in counts)


@contextmanager
def user_who_may_not(server: Server, right: str) -> Generator[str]:
    """The URL of a user with all rights but this one."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "&*", "+@all", right)
        try:
            yield server.url.replace("redis://", "redis://deaf:pw@")
        finally:
            client.execute_command("ACL", "DELUSER", "deaf")


_namespaces: Final = count()


def new_namespace() -> str:
    """A namespace that this process has not used yet: a refused subscription is logged once per app and process."""
    return f"shop-{next(_namespaces)}"


def refusals(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The lines that fennelq has logged with the standard library's logging: refused subscriptions."""
    return [line for line in caplog.records if line.name == "fennelq"]
