"""Which rows need not be kept, and in which order they are removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from fennelq.manage.history.store import HistoryKeep

_COUNTS_KEPT_MS: Final = 400 * 86_400_000
"""The sums by hour and the operations are small, and are kept for longer than the jobs."""
_BY_AGE: Final = (
    "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE status = ? AND ended < ? ORDER BY ended LIMIT ?)"
)
_COUNTS: Final = (
    "DELETE FROM counts WHERE (hour, queue, task, status) IN "
    "(SELECT hour, queue, task, status FROM counts WHERE hour < ? LIMIT ?)"
)
_HOURS: Final = (
    "DELETE FROM hours WHERE (hour, status) IN (SELECT hour, status FROM hours WHERE hour < ? LIMIT ?)"
)
_OPERATIONS: Final = (
    "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE began < ? "
    "AND line < (SELECT max(line) FROM audit) ORDER BY began LIMIT ?)"
)
"""All but the newest one, at which a recorder goes on to copy them."""
_OLDEST: Final = "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE ended <= ? ORDER BY ended LIMIT ?)"
_NTH: Final = "SELECT ended FROM jobs ORDER BY ended DESC LIMIT 1 OFFSET ?"


class PruneStatements:
    """The statements of one step, each with its values. The last value of each is the number of rows, which the
    caller adds."""

    def __init__(
        self, keep: HistoryKeep, now_ms: int, ask: Callable[[str, Sequence[object]], list[Any]]
    ) -> None:
        self._keep, self._now_ms, self._ask = keep, now_ms, ask

    def of_jobs(self) -> Iterator[tuple[str, tuple[object, ...]]]:
        """Those that remove jobs, in order."""
        ages = {
            "SUCCESS": self._keep.seconds,
            "CANCELLED": self._keep.seconds,
            "DEAD": self._keep.dead_seconds,
        }
        for status, seconds in ages.items():
            if seconds is not None:
                yield _BY_AGE, (status, self._now_ms - round(seconds * 1000))
        if self._keep.rows is not None and (first := self._ask(_NTH, (self._keep.rows,))):
            yield _OLDEST, (first[0][0],)

    def of_counts(self) -> Iterator[tuple[str, tuple[object, ...]]]:
        """Those that remove sums and operations: not before the jobs."""
        ages = (self._keep.seconds, self._keep.dead_seconds)
        if None not in ages:
            kept = max(_COUNTS_KEPT_MS, *(round(seconds * 1000) for seconds in ages if seconds is not None))
            for statement in (_COUNTS, _HOURS, _OPERATIONS):
                yield statement, (self._now_ms - kept,)
