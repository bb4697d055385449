"""What all calls of one app share: the queues that are known, the waits under way, and long work."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fennelq.manage.measures import Measures
from fennelq.manage.sending import KnownQueues
from fennelq.manage.watch import Watch
from fennelq.web.http.rates import Rates
from fennelq.web.places import streams, waits
from fennelq.web.site import Site

if TYPE_CHECKING:
    from fennelq.web.doing import Doing
    from fennelq.web.http.table import Route

_KEPT: Final = 100


class Office:
    """What all calls share."""

    def __init__(self, site: Site, rates: Rates, routes: Sequence[Route]) -> None:
        self.site, self.rates, self.routes = site, rates, routes
        self.queues = KnownQueues(site.app)
        self.closing = asyncio.Event()
        """Set when the process is to end: then waits and streams end."""
        self.waits, self.streams = waits(), streams()
        self._works: OrderedDict[str, Doing] = OrderedDict()
        self._measured: tuple[Watch, Measures] | None = None

    @property
    def measures(self) -> Measures:
        """Makes the metrics, from the looks that all other calls share."""
        watch = self.site.looks.watch
        if self._measured is None or self._measured[0] is not watch:
            self._measured = watch, Measures(self.site.app, watch)
        return self._measured[1]

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
        if self._measured is not None:
            await self._measured[1].__aexit__()
        await self.site.close()
