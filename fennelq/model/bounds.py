"""The bounds of queues: how many jobs may wait in a queue, and what happens to a call when so many wait."""

from __future__ import annotations

from typing import Literal, NamedTuple, Self, cast, get_args

from fennelq.errors import ConfigurationError
from fennelq.model.checks import valid_name
from fennelq.wording import suggestion

WhenFull = Literal["raise", "wait", "drop_oldest"]
"""What a call does when its queue is full: it raises QueueFull, waits for room, or drops the oldest job that
waits."""


class Bound(NamedTuple):
    """How many jobs may wait in a queue."""

    max_waiting: int
    when_full: WhenFull

    @classmethod
    def of(cls, max_waiting: object, when_full: object) -> Self:
        """A bound; raises ConfigurationError for a number or a word that is not valid."""
        if not isinstance(max_waiting, int) or isinstance(max_waiting, bool) or max_waiting < 1:
            raise ConfigurationError(
                f"max_waiting is the number of jobs that may wait, at least 1, not {max_waiting!r:.80}. "
                "To refuse all jobs, pause the queue: `fennelq queue pause --only enqueue`"
            )
        if when_full is not None and when_full not in get_args(WhenFull):
            raise ConfigurationError(
                f"when_full {when_full!r:.80} is not valid{suggestion(str(when_full), get_args(WhenFull))}"
            )
        return cls(max_waiting, "raise" if when_full is None else cast("WhenFull", when_full))

    def __str__(self) -> str:
        return f"max_waiting={self.max_waiting}, when_full={self.when_full!r}"


class Bounds:
    """The bounds that the code of one app declares, by queue."""

    def __init__(self) -> None:
        self._bounds: dict[str, Bound] = {}

    def __bool__(self) -> bool:
        """Whether any queue has a bound."""
        return bool(self._bounds)

    def of(self, queue: str) -> Bound | None:
        """The bound of a queue; None when it has none."""
        return self._bounds.get(queue)

    def declare(self, queue: str, max_waiting: object, when_full: object) -> None:
        """Declare the bound of a queue, if one is given. Raises ConfigurationError when it is not valid, or when the
        queue has another one."""
        valid_name("queue", queue)
        if max_waiting is None:
            if when_full is not None:
                raise ConfigurationError(
                    f"queue {queue!r}: when_full={when_full!r:.80} needs max_waiting=, the number of jobs that may wait"
                )
            return
        bound = Bound.of(max_waiting, when_full)
        known = self._bounds.setdefault(queue, bound)
        if known != bound:
            raise ConfigurationError(
                f"queue {queue!r} is declared twice, with {known} and with {bound}: remove one of them"
            )
