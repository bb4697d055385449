"""Goes on with operations whose processes have ended: any web process that is looked at does it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, get_args

from fennelq import clock
from fennelq.errors import BrokerUnavailable, FennelqError, OperationBusy
from fennelq.manage.acting import Act
from fennelq.manage.operation_record import OperationInfo
from fennelq.web.looks import Look
from fennelq.web.site import Site

EVERY: Final = 30.0
"""Seconds between two looks for such operations."""
_MOST_REFUSED: Final = 1000
SILENT: Final = 60.0
"""Seconds without a report after which the process of an operation is gone. Another process may claim it earlier."""


class Adopting:
    """The operations of an app that this process continues."""

    def __init__(self, site: Site) -> None:
        self._site, self._next = site, 0.0
        self._refused = dict[str, None]()
        """Operations that this process could not continue: it does not try again, and each attempt is recorded."""

    def look(self, look: Look) -> None:
        """Look for silent operations, unless that was done lately. It goes on beside the page that has asked."""
        if clock.monotonic() >= self._next:
            self._next = clock.monotonic() + EVERY
            self._site.begin(self._continue_silent(look), "look for silent operations")

    async def _continue_silent(self, look: Look) -> None:
        for operation in silent(await look.operations(), look.now):
            needs_code = (
                operation.needs_code and not self._site.app.tasks
            )  # a process with the code continues it
            if needs_code or operation.id in self._refused:
                continue
            self._site.begin(self._continue(operation), f"operation {operation.id}")

    async def _continue(self, operation: OperationInfo) -> None:
        app, left = self._site.app, max(0, operation.total - operation.done)
        record = app.audit.operation(
            "op resume", target=operation.id, planned=left, who=operation.who or "web", via="web"
        )
        async with record:
            try:
                ended = await app.operations.resume(operation.id)
            except OperationBusy as busy:
                record.ended(outcome=str(busy))
            except BrokerUnavailable:
                raise
            except FennelqError as error:
                self._refused[operation.id] = None
                while len(self._refused) > _MOST_REFUSED:
                    self._refused.pop(next(iter(self._refused)))
                record.ended(0, str(error), state="failed")
            else:
                done = max(0, ended.done - operation.done)
                record.ended(done, f"its process was gone; operation {ended.id} {ended.state}")


def silent(operations: Iterable[OperationInfo], now: datetime) -> list[OperationInfo]:
    """The operations that are under way, and whose process has not reported for long."""
    return [
        one
        for one in operations
        if one.state == "running"
        and one.act in get_args(Act)
        and (now - (one.beat or one.begun)).total_seconds() > SILENT
    ]
