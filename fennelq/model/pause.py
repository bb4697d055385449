"""The pause of a queue: what is paused, by whom, since when, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self

from fennelq.model.options import moment

QueueSide = Literal["consume", "enqueue"]
"""One side of a queue: executors that start its jobs, or callers that create jobs in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePause:
    """What is paused in a queue."""

    consuming: bool
    """Whether executors start no jobs of the queue."""
    enqueuing: bool
    """Whether callers that create jobs in the queue get a QueuePaused."""
    who: str
    """The person, or the program, that has paused it."""
    since: datetime | None
    """When the pause began, by the server's clock; None when it was written by hand, without a time."""
    why: str
    """The reason that was given; may be empty."""
    ignored_by: tuple[str, ...] = ()
    """Executors that go on, because their version of fennelq knows no pause. Restart them with the current version."""

    def __str__(self) -> str:
        """`consuming and enqueuing are paused since 2026-05-01 12:00:00 UTC by anna@web-1: the mail server is down`."""
        return f"{self.what} {'are' if self.consuming and self.enqueuing else 'is'} paused{self.origin}"

    @property
    def what(self) -> str:
        """`consuming`, `enqueuing`, or `consuming and enqueuing`."""
        return " and ".join(
            word
            for word, is_paused in (("consuming", self.consuming), ("enqueuing", self.enqueuing))
            if is_paused
        )

    @property
    def origin(self) -> str:
        """Since when, by whom and why."""
        since = f" since {self.since:%Y-%m-%d %H:%M:%S} UTC" if self.since else ""
        by = f" by {self.who}" if self.who else ""
        because = f": {self.why}" if self.why else ""
        return f"{since}{by}{because}"

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """The value of the key `paused`; raises ValueError when it describes no pause. A value that was written by hand
        may have only its first line."""
        letters, who, since, why, *_ = [*raw.decode("utf-8", "backslashreplace").split("\n", 3), "", "", ""]
        if letters not in ("c", "e", "ce"):
            raise ValueError(f"the key describes no pause: {letters!r:.100}")
        return cls(
            consuming="c" in letters,
            enqueuing="e" in letters,
            who=who,
            since=_moment(since),
            why=why,
        )


def _moment(text: str) -> datetime | None:
    try:
        return moment(text)
    except (ValueError, OverflowError, OSError):
        return None


def pause_in(raw: bytes | None) -> QueuePause | None:
    """The pause that the value of the key `paused` describes. None when it describes none: scripts ignore such a value
    as well."""
    try:
        return QueuePause.from_wire(raw) if raw else None
    except ValueError:
        return None
