"""What the tests of the worker may ask for: a broker on the test's server, a shop for worker processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from fennelq import App
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import QueueKeys, queue_keys
from tests.broker.desk import Desk
from tests.kit.ledger import Ledger
from tests.kit.processes import executors
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.waiting import eventually
from tests.worker import shop


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[Broker]:
    """The way to the test's server."""
    broker = Broker(address_of(redis_url))
    yield broker
    await broker.close()


@pytest.fixture
def mail() -> QueueKeys:
    """The queue `mail` of the app `shop`."""
    return queue_keys("shop", "mail")


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    """The queue `mail`."""
    desk = Desk(server)
    yield desk
    desk.close()


@pytest.fixture
def other(server: Server) -> Iterator[Desk]:
    """The queue `other`."""
    desk = Desk(server, "other")
    yield desk
    desk.close()


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[App]:
    """The app "shop", for tests that are coroutines; it has the tasks of `tests.worker.shop`."""
    async with shop.app_of(redis_url=redis_url) as app:
        yield app


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[App]:
    """The app "shop" in a program that has no code of the workers: it knows no task and sends them by name."""
    async with App(shop.NAME, redis_url=redis_url) as app:
        yield app


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[EventDict]]:
    """What workers of this process log; shown when a test fails."""
    with capture_logs() as lines:
        yield lines
    for line in lines[-50:]:
        print(line)


@pytest.fixture
def gate(tmp_path: Path) -> shop.Gate:
    """A closed gate, for jobs of any process to wait at."""
    return shop.Gate(tmp_path / "gate")


class Workers:
    """`workers("-p", "2")`: `fennelq worker` for the shop, with its first executor."""

    def __init__(self, spawn: Spawner, server: Server, ledger: Ledger) -> None:
        self._spawn = spawn
        self._environment = {
            **ledger.environment,
            "FENNELQ_REDIS_URL": server.url,
            "FENNELQ_LOG_FORMAT": "json",
            "FENNELQ_SCHEDULE_INTERVAL": "0.05",
            "FENNELQ_HEARTBEAT_INTERVAL": "0.2",
            "FENNELQ_PROCESSES": "1",
            "FENNELQ_CONCURRENCY": "4",
        }

    def __call__(
        self, *flags: str, app: str = f"{shop.__name__}:app", redirect: str = "", **environment: str
    ) -> Process:
        worker = self._spawn(
            "fennelq",
            "worker",
            "-A",
            app,
            *flags,
            environment={**self._environment, **environment},
            redirect=redirect,
        )
        # It understands signals before it has its first executor.
        eventually(lambda: not worker.running or executors(worker))
        return worker


@pytest.fixture
def workers(spawn: Spawner, server: Server, ledger: Ledger) -> Workers:
    """Starts worker processes."""
    return Workers(spawn, server, ledger)
