"""What a call of `run_until_idle` has done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fennelq.model import outcome

_LETTERS: Final[Mapping[str, str]] = {
    outcome.SUCCESS: "succeeded",
    outcome.SUCCESS_WITHOUT_VALUE: "succeeded",
    outcome.RETRY: "retried",
    outcome.SNOOZE: "snoozed",
    outcome.RATE_LIMITED: "snoozed",
    outcome.DEAD: "died",
    outcome.CANCELLED: "cancelled",
    outcome.UNKNOWN_TASK: "not_runnable",
    "recovered": "recovered",
}


class FailedTry(NamedTuple):
    """A try that failed, whether the job runs again or is dead."""

    id: str
    """The id of the job."""
    task: str
    error_type: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How many runs ended in which way."""

    succeeded: int = 0
    retried: int = 0
    """Tries that failed, after which the job waits for its next try."""
    snoozed: int = 0
    died: int = 0
    """Jobs that are dead now."""
    cancelled: int = 0
    """Jobs that were cancelled, or expired before they started."""
    not_runnable: int = 0
    """Runs that did not begin, because this app does not have the task or a parameter."""
    recovered: int = 0
    """Runs that were lost with their executor."""
    failures: Sequence[FailedTry] = ()
    """The tries that failed, in the order in which they ended."""


def between(before: Counter[str], after: Counter[str], failures: Sequence[FailedTry]) -> Summary:
    """The difference of two readings of the counters."""
    numbers = Counter[str]()
    for letter, name in _LETTERS.items():
        numbers[name] += after[letter] - before[letter]
    return Summary(**numbers, failures=tuple(failures))
