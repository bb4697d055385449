"""Background duties: a Service has a tick(), which is called every so often."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Protocol

from fennelq import clock, log

_logger = log.get("fennelq.service")
_QUIET_FOR = 60.0


class Service(Protocol):
    """A duty of an executor."""

    name: str

    async def tick(self) -> float:
        """Do the duty once; answers the seconds until the next time."""
        ...


async def tend(service: Service, *, retry_after: float = 1.0) -> None:
    """Tick for ever, sooner when the service has an event `woken` and it is set.

    An error costs one tick, never the loop. A little jitter keeps the executors of a fleet from ticking in step, but
    not a service that is `punctual`: it has an appointment.
    """
    earliest = 1.0 if getattr(service, "punctual", False) else 0.9
    complaints = Complaints(service.name)
    woken: asyncio.Event | None = getattr(service, "woken", None)
    while True:
        try:
            pause = await service.tick()
        except Exception as error:
            complaints.about(error)
            pause = retry_after
        await _sleep(pause * random.uniform(earliest, 1.0), woken)


async def _sleep(seconds: float, woken: asyncio.Event | None) -> None:
    if woken is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await woken.wait()
    woken.clear()


class Complaints:
    """Warns that something goes wrong, once a minute per kind of error and queue, however often it happens."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last: dict[tuple[str, object], float] = {}

    def about(self, error: BaseException, **facts: object) -> None:
        """Log it, unless the like was logged within the last minute."""
        kind = type(error).__name__
        like = (kind, facts.get("queue"))
        now = clock.monotonic()
        if self._last.get(like, -_QUIET_FOR) + _QUIET_FOR <= now:
            self._last[like] = now
            _logger.warning("trouble", what=self._what, error=f"{kind}: {_text_of(error)}"[:500], **facts)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as inner:  # it may be the user's code, and even exit
        return f"(its message cannot be shown: {type(inner).__name__})"
