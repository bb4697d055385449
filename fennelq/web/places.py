"""How many calls may do something at a time in this process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from fennelq.errors import FennelqError

MOST_WAITS: Final = 1000
"""Calls that wait for the end of a job."""
MOST_STREAMS: Final = 1000
"""Streams of events."""


class Busy(FennelqError):
    """This process waits for too many jobs already."""


class Places:
    """So many calls may do something at a time."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self.taken = 0
        """How many do it now."""

    def take(self) -> None:
        """Take a place. Raises Busy when none is left."""
        if self.taken >= self._most:
            raise Busy(f"{self._most:,} calls {self._what} in this process already: ask again in a moment")
        self.taken += 1

    def give_back(self) -> None:
        """Give it back."""
        self.taken -= 1

    @contextmanager
    def taking(self) -> Generator[None]:
        """Have a place. Raises Busy when none is left."""
        self.take()
        try:
            yield
        finally:
            self.give_back()


def waits() -> Places:
    """The places of the calls that wait for the end of a job."""
    return Places(MOST_WAITS, "wait for the ends of jobs")


def streams() -> Places:
    """The places of the streams of events."""
    return Places(MOST_STREAMS, "follow jobs")
