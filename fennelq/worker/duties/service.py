"""A background duty of an executor is a Service with a tick(), which is called again and again."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import ClassVar

from fennelq.worker.outage import LogThrottle, Outage
from fennelq.worker.state import State


class Service(ABC):
    """A duty, made from the state that the parts of an executor share."""

    name: ClassVar[str]
    punctual: ClassVar[bool] = False
    """Whether tick() is called exactly at the time that it asks for, without jitter."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.woken = asyncio.Event()
        """Set it to make the next tick happen now."""

    @abstractmethod
    async def tick(self) -> float:
        """Do the duty once; returns the seconds until the next time."""

    async def end(self) -> None:  # noqa: B027 - most duties have nothing left to do
        """Do what is left when the executor ends: its jobs have ended or were handed back, and `tick` is not called any
        more. It may take a few seconds at most, and must not raise."""


async def tend(service: Service, *, retry_after: float = 1.0, outage: Outage | None = None) -> None:
    """Tick for ever: after the pause that the last tick returned, or when `woken` is set.

    An error ends one tick, never the loop. A little jitter keeps the executors of a fleet from ticking in step. A
    `punctual` service gets none, because its next tick is due at a certain time.
    """
    earliest = 1.0 if service.punctual else 0.9
    throttle = LogThrottle(service.name, outage)
    while True:
        try:
            pause = await service.tick()
            throttle.over()
        except Exception as error:
            throttle.warn(error)
            pause = retry_after
        await _sleep(pause * random.uniform(earliest, 1.0), service.woken)


async def _sleep(seconds: float, woken: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await woken.wait()
    woken.clear()
