"""What all calls of one app share: the queues that are known, the waits under way, operations to go on with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fennelq.manage.measures import Measures
from fennelq.manage.sending import KnownQueues
from fennelq.manage.watch import Watch
from fennelq.web.adopting import Adopting
from fennelq.web.http.description import Documents
from fennelq.web.http.rates import Rates
from fennelq.web.places import streams, waits
from fennelq.web.site import Site

if TYPE_CHECKING:
    from fennelq.web.http.call import Call
    from fennelq.web.http.table import Route


class Office:
    """What all calls share."""

    def __init__(self, site: Site, rates: Rates, routes: Sequence[Route], *, adopts: bool) -> None:
        self.site, self.rates, self.routes = site, rates, routes
        self.queues = KnownQueues(site.app)
        self.documents = Documents(site.app, routes)
        self.closing = asyncio.Event()
        """Set when the process is to end: then waits and streams end."""
        self.waits, self.streams = waits(), streams()
        self._adopting = Adopting(site) if adopts else None
        self._measured: tuple[Watch, Measures] | None = None

    @property
    def measures(self) -> Measures:
        """Makes the metrics, from the looks that all other calls share."""
        watch = self.site.looks.watch
        if self._measured is None or self._measured[0] is not watch:
            self._measured = watch, Measures(self.site.app, watch)
        return self._measured[1]

    async def adopt(self, call: Call) -> None:
        """Go on with operations whose process has ended."""
        if self._adopting is not None:
            self._adopting.look(await call.look())

    async def close(self) -> None:
        """End the waits, the streams and the work that is under way."""
        self.closing.set()
        if self._measured is not None:
            await self._measured[1].__aexit__()
        await self.site.close()
