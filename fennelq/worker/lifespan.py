"""The lifespan of the app: entered before the executor reads its first job, left after the last one."""

from __future__ import annotations

import asyncio
from typing import Any

from fennelq.injection.recipe import Recipe
from fennelq.worker.processes.signals import Signal
from fennelq.worker.state import State


class Lifespan:
    """Enters the lifespan of one executor, and leaves it together with the other values that its jobs share."""

    def __init__(self, state: State) -> None:
        self._state, self._injections = state, state.app.injections
        self.failed = False
        """Whether it could not be entered."""

    async def enter(self, stop: asyncio.Event) -> bool:
        """Enter the lifespan, if the app has one; returns whether that was done before `stop` was set. An executor that
        takes no jobs does not enter it: it is for the jobs, and may need what the machine does not have."""
        recipe = self._injections.lifespan
        if recipe is None:
            return True
        if not self._state.config.consumes:
            self._state.signals.send(Signal.IMPORTED)
            return True
        making = asyncio.create_task(self._made(recipe), name="lifespan")
        stopping = asyncio.create_task(stop.wait(), name="stopped")
        try:
            await asyncio.wait([making, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not making.done():
                return False
            value, error = making.result()
            if error is not None:
                self.failed = True
                raise error
            self._injections.begin(self._state.name, value)
        finally:
            making.cancel()
            stopping.cancel()
        # From now on the supervisor expects signs of life. Until here it is as patient as with an import.
        self._state.signals.send(Signal.IMPORTED)
        return True

    async def _made(self, recipe: Recipe) -> tuple[Any, BaseException | None]:
        """The value or the error. A SystemExit that a task raises would end the loop at once."""
        try:
            return await self._state.shared.make_all(recipe), None
        except BaseException as error:
            return None, error

    async def leave(self) -> None:
        """Leave all values that jobs share, the lifespan last."""
        await self._state.shared.leave(self._state.settings.stop_grace)
        self._injections.end(self._state.name)
