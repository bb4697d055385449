"""What is read of many queues or schedules, one by one: a page waits for a few of them, and others follow in the
background. So the number of commands of a page does not depend on how many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from fennelq import clock

T = TypeVar("T")

_SHARE: Final = 50
"""A step is followed by a pause that is so many times as long: reading takes at most a fiftieth of the server."""
SHORTEST: Final = 0.02
PATIENCE: Final = 0.1
"""Seconds for which a page waits for a step. After a long step there is a long pause before the next one. A page waits
for up to four things like this one, and has less than a second."""


class Known(NamedTuple, Generic[T]):
    """What was read of one of them."""

    version: Hashable
    """What was known of it at that time: when this changes, it is read again."""
    value: T


class Rounds(Generic[T]):
    """Values by name, each read anew when its version has changed: the unknown ones first, then those that were read
    longest ago."""

    def __init__(self, step: int, find: Callable[[Sequence[str]], Awaitable[Sequence[T]]]) -> None:
        """`find` reads the values of at most `step` names."""
        self._step, self._find = step, find
        self._known: dict[str, Known[T]] = {}
        """In the order of the reading."""
        self._wanted: Mapping[str, Hashable] = {}
        self._reading: asyncio.Task[None] | None = None
        self._end: asyncio.Future[None] | None = None
        """The end of the next step."""
        self.version = 0
        """How often something was read."""

    async def read(self, wanted: Mapping[str, Hashable]) -> int:
        """Read these names, each with its version. It waits for one step at most, and raises its error. While a reading
        of many goes on, it waits only if names are unknown. Returns how many names are unknown after it."""
        self._wanted = wanted
        for name in [name for name in self._known if name not in wanted]:
            del self._known[name]
        if self._due and (self._reading is None or self._reading.done() or len(self._known) < len(wanted)):
            await end_of(self._next_end())
        return len(wanted.keys() - self._known.keys())

    @property
    def values(self) -> Mapping[str, T]:
        """What is known, by name."""
        return {name: known.value for name, known in self._known.items()}

    async def close(self) -> None:
        """End the reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    @property
    def _due(self) -> list[str]:
        unknown = [name for name in self._wanted if name not in self._known]
        changed = [
            name
            for name, known in self._known.items()
            if name in self._wanted and known.version != self._wanted[name]
        ]
        return unknown + changed

    def _next_end(self) -> asyncio.Future[None]:
        if self._end is None:
            self._end = asyncio.get_running_loop().create_future()
            self._end.add_done_callback(_retrieve)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="read in rounds")
        return self._end

    async def _read(self) -> None:
        """Read all that is due. An error ends it, and reaches the readers of the step: the next page asks again."""
        error: Exception | None = None
        try:
            while names := self._due[: self._step]:
                began = clock.monotonic()
                await self._read_some(names)
                self._end_step(None)
                await asyncio.sleep(max(SHORTEST, _SHARE * (clock.monotonic() - began)))
        except Exception as raised:
            error = raised
        finally:
            self._end_step(error)

    async def _read_some(self, names: Sequence[str]) -> None:
        versions = [self._wanted[name] for name in names]
        for name, version, value in zip(names, versions, await self._find(names), strict=True):
            self._known.pop(name, None)
            self._known[name] = Known(version, value)
        self.version += 1

    def _end_step(self, error: Exception | None) -> None:
        end, self._end = self._end, None
        if end is None or end.done():
            return
        if error is None:
            end.set_result(None)
        else:
            end.set_exception(error)


async def end_of(step: asyncio.Future[None]) -> None:
    """Wait for the end of a step, but not for long; raises its error. A reader that is cancelled does not cancel it."""
    done, _ = await asyncio.wait([step], timeout=PATIENCE)
    if done:
        step.result()


def _retrieve(end: asyncio.Future[None]) -> None:
    """Without a reader, asyncio would log that the error was never retrieved."""
    if not end.cancelled():
        end.exception()
