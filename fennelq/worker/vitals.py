"""The state of an executor's event loop: how late it is, and which code blocks it.

The watchdog writes this, from the loop and from its thread. Presence reports it, and while the loop is blocked, the
deputy does.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

from fennelq import clock

_MOST_TEXT: Final = 200
"""Characters of a text in the facts: each executor writes its facts every few seconds."""
_KEPT: Final = 600.0
"""Seconds for which the latest blockage is reported after its end."""


class Blockage(NamedTuple):
    """Code that blocks the loop, or has blocked it."""

    at: str
    """File, line and function: the innermost call in the code of the task, if there is one."""
    job: str
    """The job, or the part of the executor, whose code it is."""
    seconds: float
    """For how long, so far."""


class Vitals:
    """The state of one loop. Any thread may read it."""

    def __init__(self) -> None:
        self._worst = self._second = 0.0
        self._latest: Blockage | None = None
        self._until = 0.0
        self.blocked = False
        """Whether the loop is blocked now."""
        self.wakes = threading.Event()
        """Set when the deputy has something to do."""
        self.facts: Mapping[str, object] = {}
        """What the executor has last reported of itself."""

    def note_lag(self, seconds: float) -> None:
        """Record by how much the loop was late."""
        self._worst, self._second = max(self._worst, seconds), max(self._second, seconds)

    def take_lag(self) -> float:
        """The longest delay of the loop since the last call, in seconds."""
        worst, self._worst = self._worst, 0.0
        return worst

    def take_lag_of_second(self) -> float:
        """The same for a caller that asks once a second."""
        worst, self._second = self._second, 0.0
        return worst

    def note_blocked(self, blockage: Blockage, *, stand_in: bool) -> None:
        """Record that this code blocks the loop now. With `stand_in`, the deputy acts for the loop."""
        self._latest, self._until = blockage, clock.monotonic()
        if stand_in and not self.blocked:
            self.blocked = True
            self.wakes.set()

    def note_works(self) -> None:
        """Record that the loop is not blocked now."""
        self.blocked = False

    def note_facts(self, facts: Mapping[str, object]) -> None:
        """Record what the executor reports of itself."""
        self.facts = facts

    def blockage(self) -> dict[str, object]:
        """The fact about the latest blockage; empty when there was none in the last minutes."""
        latest, ago = self._latest, clock.monotonic() - self._until
        if latest is None or (ago > _KEPT and not self.blocked):
            return {}
        found: dict[str, object] = {
            # The end of a path has the file, the line and the function.
            "at": latest.at[-_MOST_TEXT:],
            "job": latest.job[:_MOST_TEXT],
            "seconds": round(latest.seconds, 1),
        }
        if not self.blocked:
            found["ago"] = round(ago)
        return {"blocked": found}
