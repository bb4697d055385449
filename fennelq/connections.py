"""The connections of an app: the parts of `App` that the other modules use, and users do not."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

from fennelq import clock, embedded
from fennelq.broker.connection import Address, address_of
from fennelq.errors import ConfigurationError
from fennelq.model.lifetimes import Lifetimes
from fennelq.settings.settings import Settings
from fennelq.wiring import Wiring

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.broker.blocking import BlockingBroker
    from fennelq.client import Client

_NOTED_FOR: Final = 60.0
_CACHED: Final = ("address", "blocking")
_REWIRED: Final = ("settings", "namespace", "wiring", "noted", "_clients", "_lock", "_last")


class NotedQueues:
    """When this process last added each queue to the app's list of queues, where workers that serve every queue find
    it. It is added again from time to time: otherwise a flush of Redis would hide the queue for ever."""

    def __init__(self) -> None:
        self._noted: dict[str, float] = {}

    def is_due(self, queue: str) -> bool:
        """Whether the queue should be added to the list (again)."""
        return self._noted.get(queue, -_NOTED_FOR) + _NOTED_FOR <= clock.monotonic()

    def done(self, queue: str) -> None:
        """The queue was added to the list."""
        self._noted[queue] = clock.monotonic()


class Connections:
    """The address of an app's Redis, and the connected clients: one for each event loop."""

    settings: Settings
    namespace: str

    def __init__(self, settings: Settings, root: Path) -> None:
        self.settings, self.root = settings, root
        self.wiring = Wiring()
        self.noted = NotedQueues()
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._last: tuple[asyncio.AbstractEventLoop, Client] | None = None

    @cached_property
    def address(self) -> Address:
        """The address of Redis. Without a configured URL, this joins the private server, and starts it if necessary."""
        url = self.settings.redis_url
        if url is None or self.settings.embedded:
            return replace(address_of(_embedded(url, self.root)), private=True)
        return address_of(url)

    @property
    def lifetimes(self) -> Lifetimes:
        """The settings that scripts need."""
        return Lifetimes(
            self.settings.record_ms,
            max(1, round(self.settings.failure_ttl * 1000)),
            round(self.settings.unknown_task_patience * 1000),
        )

    @property
    def client(self) -> Client:
        """The sending side on the running event loop."""
        loop = asyncio.get_running_loop()
        # Read `_last` once: another thread may assign the client of its own loop, or None, between two reads.
        last = self._last
        if last is not None and last[0] is loop:
            return last[1]
        with self._lock:
            client = self._clients.get(loop)
            if client is None:
                # Programs that call asyncio.run() again and again leave behind clients of closed loops.
                for closed in [known for known in self._clients if known.is_closed()]:
                    del self._clients[closed]
                client = self._clients[loop] = self.wiring.client(cast("App", self))
        self._last = (loop, client)
        return client

    @cached_property
    def blocking(self) -> BlockingBroker:
        """Runs verbs without an event loop."""
        return self.wiring.blocking(self.address)

    async def _close_client(self) -> None:
        """Finish the calls under way, and close the connections of this loop."""
        with self._lock:  # another thread may be iterating over the clients
            client = self._clients.pop(asyncio.get_running_loop(), None)
        self._last = None
        if client is not None:
            await client.close()


@contextmanager
def rewired(app: App, settings: Settings, namespace: str, wiring: Wiring) -> Generator[None]:
    """For the length of a block, let the app reach another Redis, through other parts. `fennelq.testing` needs this.

    The caller closes the connections that were made in the block."""
    parts = vars(app)
    before: dict[str, Any] = {name: parts[name] for name in (*_CACHED, *_REWIRED) if name in parts}
    _forget_address(app)
    Connections.__init__(app, settings, app.root)
    app.namespace, app.wiring = namespace, wiring
    try:
        yield
    finally:
        _forget_address(app)
        parts.update(before)


def _forget_address(app: App) -> None:
    for name in _CACHED:
        vars(app).pop(name, None)


def _embedded(url: str | None, root: Path) -> str:
    folder = Path(url.removeprefix("embedded://")) if url and url != "embedded://" else root / ".fennelq"
    if url is None:
        _check_unasked(folder)
    # With the standard library's logging: an application that has not configured fennelq's log must not print this.
    logging.getLogger("fennelq").info("no redis_url is set: using a private server, its data in %s", folder)
    return embedded.start(folder).url


def _check_unasked(folder: Path) -> None:
    """Raises ConfigurationError where a private server was not asked for and is surely a mistake."""
    if _is_under_pytest():
        raise ConfigurationError(
            "no redis_url is set, and pytest is running: the jobs of a test would go to the project's own server in "
            f"{folder}, where a worker of yours would really run them. Write async with fennelq.testing.testing(app): "
            "around the test, or with, for code without a loop. Or give the tests a server in a directory of "
            "their own: at the top of conftest.py, before the app is imported, write "
            'os.environ["FENNELQ_REDIS_URL"] = f"embedded://{tempfile.mkdtemp()}", or pass it as App(redis_url=…). '
            "A plain call, await welcome(42), needs no server; embedded:// uses the project's server all the same"
        )
    if (where := embedded.recognised_deployment()) is not None:
        raise ConfigurationError(
            f"no redis_url is set, and this looks like {where}: set FENNELQ_REDIS_URL "
            "(embedded:// asks for a private server explicitly)"
        )


def _is_under_pytest() -> bool:
    """Whether this process is a test session, or was started by one. A process that only imports pytest is neither."""
    return bool(os.environ.get("PYTEST_VERSION") or os.environ.get("PYTEST_CURRENT_TEST"))
