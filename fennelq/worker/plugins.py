"""Runs the services of plugins in an executor, as long as it lives."""

from __future__ import annotations

import asyncio
import math

from fennelq import loops
from fennelq.plugin import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.state import State

AFTER_AN_ERROR = 1.0
LEAVING = 1.0
"""Seconds for a service that does something at its end."""


class PluginServices:
    """Calls each service again and again. Unlike a duty, a service that fails, or that other code cancels, does not end
    its executor: it is called again after a second."""

    def __init__(self, state: State) -> None:
        self._plugins = state.app.plugins
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = False

    def start(self) -> None:
        """Begin to call them. The names of the tasks appear in the log when a service blocks the loop."""
        self._tasks = [
            asyncio.create_task(self._tend(name, service), name=f"plugin {name}")
            for name, service in self._plugins.services
        ]

    async def end(self) -> None:
        """Cancel them, and wait for a second at most."""
        self._ending = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LEAVING)

    async def _tend(self, name: str, service: Service) -> None:
        throttle = LogThrottle(f"plugin {name}")
        while not self._ending:
            try:
                await asyncio.sleep(_pause_of(await service()))
            except BaseException as error:
                if self._ending or loops.running_loop() is None:
                    raise
                _go_on()
                throttle.warn(error)
                await self._rest()

    async def _rest(self) -> None:
        try:
            await asyncio.sleep(AFTER_AN_ERROR)
        except asyncio.CancelledError:
            if self._ending:
                raise
            _go_on()


def _pause_of(returned: object) -> float:
    if isinstance(returned, int | float) and 0 <= returned < math.inf:
        return returned
    raise TypeError(f"a service returns the seconds until its next call, not {returned!r:.100}")


def _go_on() -> None:
    """Take back cancellations by other code: a job may cancel all tasks of the loop."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()
