"""Looks at an app for `fennelq top`: follows the watch, and asks after a snapshot what the open view shows besides.

It looks at most once a second, and so does the open view; a look at a view is followed by a pause that is fifty times
as long, as one of the watch is. While it is stopped, because something is in front of the views, it asks nothing.
"""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Callable
from contextlib import aclosing, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fennelq import clock
from fennelq.broker.trouble import ReplyError
from fennelq.cli.top.rows import one_line
from fennelq.cli.top.views import View
from fennelq.errors import BrokerUnavailable, FennelqError
from fennelq.manage.watch import LONGEST, SHARE, SHORTEST, Snapshot, Watch

if TYPE_CHECKING:
    from fennelq.app import App

OVERDUE: Final = 2.0
"""Seconds after the next look was due without which no reply is reported."""


class Picture(NamedTuple):
    """What is known now."""

    snapshot: Snapshot | None = None
    """The latest one; None before the first."""
    seen: Any = None
    """What the open view has found; None before its first look."""
    refused: str = ""
    """Why the open view shows nothing: a filter that cannot be searched, a job that is gone, a missing right."""


class Looking:
    """Looks as long as it is started. `picture` is what it knows; it calls `changed` when that is something new."""

    def __init__(self, app: App, view: View, changed: Callable[[], None]) -> None:
        self._app, self._changed = app, changed
        self.view = view
        self.picture = Picture()
        self._looking: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        """The look at the open view, while it is under way."""
        self._due = asyncio.Event()
        self._pause, self._looked_at = 0.0, float("-inf")
        """Of the open view: how long it pauses, and the end of its last look."""
        self._seen_at: datetime | None = None
        self._alive_at = clock.monotonic()
        """When the latest snapshot came, or the looking began."""
        self._away: tuple[datetime, str] | None = None

    @property
    def looks(self) -> bool:
        """Whether it is started."""
        return self._looking is not None

    def open(self, view: View) -> None:
        """Show another view from now on."""
        self.view = view
        self.picture = Picture(self.picture.snapshot)
        self._pause = SHORTEST
        if self._asking is not None:
            self._asking.cancel()  # a search may take long
        self._due.set()
        self._changed()

    def start(self) -> None:
        """Look from now on."""
        if self._looking is None:
            self._alive_at = clock.monotonic()
            self._looking = asyncio.create_task(self._look(), name="looking")

    async def stop(self) -> None:
        """Ask nothing from now on. The picture stays."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking

    def check(self) -> None:
        """Raises the error that has ended the looking, if there is one: it is a mistake of this program."""
        if self._looking is not None and self._looking.done() and not self._looking.cancelled():
            self._looking.result()

    def trouble(self, now: datetime | None = None) -> str:
        """Why the picture is old, and since when; empty while it is recent."""
        picture = f"; the picture is of {self._seen_at:%H:%M:%S}" if self._seen_at else ""
        if self._away:
            since, why = self._away
            return f"No news since {since:%H:%M:%S}: {one_line(why)}{picture}"
        interval = self.picture.snapshot.interval if self.picture.snapshot else 0.0
        silent = clock.monotonic() - self._alive_at
        if not self.looks or silent <= interval + OVERDUE:
            return ""
        return f"Redis has not replied for {silent:.0f} s{picture}"

    async def _look(self) -> None:
        async with Watch(self._app) as watch, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(watch))
            tasks.create_task(self._look_at_views(tasks))

    async def _follow(self, watch: Watch) -> None:
        while True:
            try:
                async with aclosing(watch.follow()) as snapshots:
                    async for snapshot in snapshots:
                        self._take(snapshot)
            except Exception as error:  # the watch pauses before its next look
                self._note_away(error)

    def _take(self, snapshot: Snapshot) -> None:
        self._away, self._alive_at = None, clock.monotonic()
        self._seen_at = datetime.now().astimezone()
        self.picture = self.picture._replace(snapshot=snapshot)
        self._due.set()
        self._changed()

    def _note_away(self, error: Exception) -> None:
        since = self._away[0] if self._away else datetime.now().astimezone()
        if isinstance(error, BrokerUnavailable):
            self._away = since, f"Redis {error.reason}"
        else:
            self._away = since, f"{type(error).__name__}: {error}"
        self._changed()

    async def _look_at_views(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            if self.view.asks:
                await self._pause_between_looks()
            if self.view.asks and self.picture.snapshot is not None:
                self._asking = tasks.create_task(self._look_at(self.view, self.picture.snapshot))
                await asyncio.wait([self._asking])

    async def _pause_between_looks(self) -> None:
        left = self._looked_at + self._pause - clock.monotonic()
        while left > 0:
            await sleep(min(left, SHORTEST))  # another view may be opened meanwhile, whose pause is shorter
            left = self._looked_at + self._pause - clock.monotonic()

    async def _look_at(self, view: View, snapshot: Snapshot) -> None:
        def show(seen: Any, refused: str = "") -> None:
            if view is self.view:
                self.picture = self.picture._replace(seen=seen, refused=refused)
                self._changed()

        began = clock.monotonic()
        try:
            show(await view.look(self._app, snapshot, show))
        except BrokerUnavailable as error:
            if error.retriable:
                self._note_away(error)
            else:
                show(None, one_line(str(error)))
        except (FennelqError, ReplyError) as error:
            show(None, one_line(str(error)))
        except Exception as error:
            show(None, one_line(f"{type(error).__name__}: {error}"))
        finally:
            self._looked_at = clock.monotonic()
            if view is self.view:
                self._pause = min(LONGEST, max(SHORTEST, SHARE * (self._looked_at - began)))
