"""What all calls of one app share: the queues that are known, the waits under way, and long work."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fennelq.errors import FennelqError
from fennelq.manage.sending import KnownQueues
from fennelq.web.http.rates import Rates
from fennelq.web.site import Site

if TYPE_CHECKING:
    from fennelq.web.doing import Doing
    from fennelq.web.http.table import Route

MOST_WAITS: Final = 1000
"""Calls of one process that wait for the end of a job at a time."""
MOST_STREAMS: Final = 1000
"""Streams of events of one process at a time."""
_KEPT: Final = 100


class Busy(FennelqError):
    """This process waits for too many jobs already."""


class Office:
    """What all calls share."""

    def __init__(self, site: Site, rates: Rates, routes: Sequence[Route]) -> None:
        self.site, self.rates, self.routes = site, rates, routes
        self.queues = KnownQueues(site.app)
        self.closing = asyncio.Event()
        """Set when the process is to end: then waits and streams end."""
        self.waits = Places(MOST_WAITS, "wait for the ends of jobs")
        self.streams = Places(MOST_STREAMS, "follow jobs")
        self._works: OrderedDict[str, Doing] = OrderedDict()

    def note(self, doing: Doing) -> str:
        """Keep track of long work; returns its id."""
        name = f"w{secrets.token_hex(6)}"
        self._works[name] = doing
        while len(self._works) > _KEPT:
            self._works.popitem(last=False)
        return name

    def work(self, name: str) -> Doing | None:
        """Long work of this process."""
        return self._works.get(name)

    async def close(self) -> None:
        """End the waits, the streams and the work that is under way."""
        self.closing.set()
        await self.site.close()


class Places:
    """So many calls may do something at a time."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self.taken = 0
        """How many do it now."""

    @contextmanager
    def taking(self) -> Generator[None]:
        """Take a place. Raises Busy when none is left."""
        if self.taken >= self._most:
            raise Busy(f"{self._most:,} calls {self._what} in this process already: ask again in a moment")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
