"""The counts of runs and times in pieces, one key of Redis each, for a reader that keeps what it has read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from fennelq.broker import verbs
from fennelq.broker.keys import queue_keys
from fennelq.broker.talk import Talk, together
from fennelq.broker.verbs.times import HOUR_MS, WINDOW_MS, Window
from fennelq.manage.times import NO_MINUTES, NO_TIMES, unless_unreadable

if TYPE_CHECKING:
    from fennelq.app import App

_LENGTH: Final = {"minutes": HOUR_MS / 1000, "times": WINDOW_MS / 1000}
Minutes = dict[int, dict[str, int]]
"""Minute of the hour → letter of an outcome → runs."""


class Piece(NamedTuple):
    """The runs of a queue in each minute of an hour, or the times of its tasks in ten minutes."""

    queue: str
    of: Literal["minutes", "times"]
    number: int
    """So many hours, or ten minutes, after the epoch."""

    @property
    def begin(self) -> float:
        """Seconds since the epoch."""
        return self.number * _LENGTH[self.of]

    @property
    def end(self) -> float:
        """Seconds since the epoch."""
        return self.begin + _LENGTH[self.of]


def hours_until(queue: str, at: float, count: int) -> list[Piece]:
    """The last hours of a queue at a moment, the latest first; the first one is under way."""
    last = int(at * 1000 // HOUR_MS)
    return [Piece(queue, "minutes", last - place) for place in range(count)]


def windows_until(queue: str, at: float, count: int) -> list[Piece]:
    """The last times of ten minutes of a queue at a moment, the latest first; the first ones are under way."""
    last = int(at * 1000 // WINDOW_MS)
    return [Piece(queue, "times", last - place) for place in range(count)]


def read_pieces(app: App, pieces: Sequence[Piece]) -> Talk[list[Minutes | Window]]:
    """What these keys have, in one round trip, with one command each."""
    found: list[Any] = yield from together(_read(app, piece) for piece in pieces)
    return found


def _read(app: App, piece: Piece) -> Talk[Any]:
    keys, at_ms = queue_keys(app.namespace, piece.queue), round(piece.begin * 1000)
    if piece.of == "minutes":
        return (yield from unless_unreadable(verbs.times.hour(keys, at_ms), NO_MINUTES))
    return (yield from unless_unreadable(verbs.times.times(keys, at_ms), NO_TIMES))
