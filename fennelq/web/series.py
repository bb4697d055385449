"""The runs and the times of all queues, as far as this process has read them, for charts and percentiles.

An hour of a queue is a key, and ten minutes of times are another one. What can change no more is read once. The rest
is read again while jobs of its queue end. That happens in steps of a few keys with pauses between them, so that reading
keeps the server busy for at most a fiftieth of the time, whatever the number of queues, pages and readers.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from fennelq import clock
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verbs.times import RUN, WAIT, Window
from fennelq.errors import BrokerUnavailable
from fennelq.manage.time_pieces import Minutes, Piece, hours_until, read_pieces, windows_until
from fennelq.manage.times import TaskTimes, by_task
from fennelq.model.times import Times, added
from fennelq.web.rounds import end_of

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.web.looks import Look

T = TypeVar("T")

STEP: Final = 5
"""Keys that are read at a time: with its other commands, a page sends at most 20 besides the surveys."""
REST: Final = 30.0
"""Seconds until a key is read again."""
REPORTED: Final = 90.0
"""Seconds after which all executors have reported what they did: they report once a minute."""
_SHARE: Final = 50
"""A step is followed by a pause that is so many times as long."""
SHORTEST: Final = 0.02
KEPT: Final = 25 * 3600.0
"""Seconds for which hours are kept: a page shows 24 of them."""
LETTERS: Final = "SRD"
"""The outcomes that charts show: a success, a failure with a further try, a death."""
_QUIET: Final = array("L", bytes(0))
_WINDOWS: Final = 2
"""The times of the last 10 to 20 minutes are shown."""


class Known(NamedTuple):
    """What was read of a key."""

    value: Any
    """The counts of an hour by minute and outcome, or a Window."""
    at: float
    """When it was read, by the server's clock."""


class QueueTimes(NamedTuple):
    """How long jobs of a queue waited and ran within the last 10 to 20 minutes."""

    wait: Times
    run: Times


class Counts(NamedTuple):
    """Runs that ended within some minutes."""

    ok: int
    retry: int
    dead: int


class Series:
    """What was read of the times of an app, and what is to be read."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._known: dict[Piece, Known] = {}
        self._active: dict[str, tuple[int, float]] = {}
        """Queue → the sum of its counters, and the moment at which that was seen to change."""
        self._due: dict[Piece, None] = {}
        self._reading: asyncio.Task[None] | None = None
        self._step: asyncio.Future[None] | None = None
        """The end of the next step."""
        self._derived: dict[tuple[Any, ...], Any] = {}
        """What pages have computed from what is known; it lasts until more is read, or the minute ends."""
        self._minute = 0
        self.version = 0
        """How often something was read."""

    async def read(self, look: Look, queues: Iterable[str], hours: int = 0, *, times: bool = True) -> int:
        """Read the last hours of some queues, and their times of the last minutes. It waits for one step at most:
        returns how many of the queues are not read yet. They are read in the background."""
        at, wanted = _at(look), list[Piece]()
        for queue in queues:
            wanted += hours_until(queue, at, hours)
            wanted += windows_until(queue, at, _WINDOWS if times else 0)
        self._notice(look)
        due = [piece for piece in wanted if self._is_due(piece, at)]
        self._due.update(dict.fromkeys(due))
        if due:
            step = self._next_step(look)
            if any(piece not in self._known for piece in due):
                await end_of(step)
        return len({piece.queue for piece in due if piece not in self._known})

    def runs(self, queues: Sequence[str], at: float, slots: int, minutes: int) -> list[Counts]:
        """The runs of some queues together, in each of the last slots of so many minutes, the oldest first. `at` is in
        seconds since the epoch; the minute before it is left out, because executors have not reported it yet."""
        first = last_minute(at) - slots * minutes
        key = ("runs", tuple(queues), slots, minutes)
        return self._once(at, key, lambda: self._counted(queues, first, slots, minutes))

    def times(self, queues: Sequence[str], at: float) -> QueueTimes:
        """How long the jobs of these queues waited and ran, all tasks together."""
        return self._once(at, ("times", tuple(queues)), lambda: _together(self._windows(queues, at)))

    def tasks(self, queues: Sequence[str], at: float) -> list[TaskTimes]:
        """The times of each task in these queues; the most frequent task first."""
        return self._once(at, ("tasks", tuple(queues)), lambda: by_task(self._windows(queues, at)))

    async def close(self) -> None:
        """End the reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    # Reading

    def _notice(self, look: Look) -> None:
        at = _at(look)
        for name in [name for name in self._active if name not in look.queues]:
            del self._active[name]
        for name, info in look.queues.items():
            total = sum(info.ended.values())
            if self._active.get(name, (-1, 0.0))[0] != total:
                self._active[name] = total, at if total else 0.0

    def _is_due(self, piece: Piece, now: float) -> bool:
        changed = self._active.get(piece.queue, (0, 0.0))[1] + REPORTED
        known = self._known.get(piece)
        if known is None:
            return piece.begin < changed
        return known.at < min(changed, piece.end + REPORTED) and now - known.at >= REST

    def _next_step(self, look: Look) -> asyncio.Future[None]:
        if self._step is None:
            self._step = asyncio.get_running_loop().create_future()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_due(look), name="read the times of the queues")
        return self._step

    async def _read_due(self, look: Look) -> None:
        """Read what is due. An error ends it: the pages that show these times ask again."""
        try:
            while self._due:
                pieces = [*self._due][:STEP]
                began = clock.monotonic()
                await self._read_step(look, pieces)
                self._end_step()
                await asyncio.sleep(max(SHORTEST, _SHARE * (clock.monotonic() - began)))
        except (BrokerUnavailable, ReplyError):
            self._due.clear()
        finally:
            self._forget(_now(look))
            self._end_step()

    async def _read_step(self, look: Look, pieces: Sequence[Piece]) -> None:
        now = _now(look)
        found = await self._app.client.converse(read_pieces(self._app, pieces))
        for piece, value in zip(pieces, found, strict=True):
            self._known[piece] = Known(value if isinstance(value, Window) else _packed(value), now)
            self._due.pop(piece, None)
        self._derived.clear()
        self.version += 1

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None and not step.done():
            step.set_result(None)

    def _forget(self, now: float) -> None:
        old = [piece for piece in self._known if piece.end < now - KEPT]
        for piece in old:
            del self._known[piece]

    # Counting

    def _counted(self, queues: Sequence[str], first: int, slots: int, minutes: int) -> list[Counts]:
        """The sums of the slots that begin with the minute `first` since the epoch."""
        totals = [[0, 0, 0] for _ in range(slots)]
        hours = range(first // 60, (first + slots * minutes - 1) // 60 + 1)
        for queue in queues:
            for hour in hours:
                known = self._known.get(Piece(queue, "minutes", hour))
                if known is not None and known.value:
                    _add(totals, known.value, hour * 60 - first, minutes)
        return [Counts(*total) for total in totals]

    def _windows(self, queues: Sequence[str], at: float) -> list[Window]:
        pieces = (piece for queue in queues for piece in windows_until(queue, at, _WINDOWS))
        return [known.value for piece in pieces if (known := self._known.get(piece)) is not None]

    def _once(self, at: float, key: tuple[Any, ...], compute: Callable[[], T]) -> T:
        if self._minute != at // 60:
            self._minute = int(at // 60)
            self._derived.clear()
        if key not in self._derived:
            self._derived[key] = compute()
        value: T = self._derived[key]
        return value


def last_minute(at: float) -> int:
    """The minute since the epoch before which all executors have reported their runs."""
    return int(at // 60) - 1


def _at(look: Look) -> float:
    return look.at.timestamp()


def _now(look: Look) -> float:
    return look.now.timestamp()


def _packed(minutes: Minutes) -> array[int]:
    """The counts of an hour in little memory: a page shows 24 hours of a thousand queues."""
    counts = array("L", bytes(60 * len(LETTERS) * _QUIET.itemsize))
    for minute, ended in minutes.items():
        for place, letter in enumerate(LETTERS):
            counts[minute * len(LETTERS) + place] = ended.get(letter, 0)
    return counts if any(counts) else _QUIET


def _add(totals: list[list[int]], counts: Sequence[int], offset: int, minutes: int) -> None:
    """Add the counts of an hour, which begins so many minutes after the first slot."""
    for minute in range(60):
        slot = (offset + minute) // minutes
        if 0 <= slot < len(totals):
            for place in range(len(LETTERS)):
                totals[slot][place] += counts[minute * len(LETTERS) + place]


def _together(windows: Iterable[Window]) -> QueueTimes:
    counts: dict[str, list[list[int]]] = {WAIT: [], RUN: []}
    for window in windows:
        for (_, what), buckets in window.durations.items():
            counts[what].append(buckets)
    return QueueTimes(wait=added(counts[WAIT]), run=added(counts[RUN]))
