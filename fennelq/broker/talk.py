"""A conversation is a value too: several steps with Redis, written once, run with an event loop or without one.

It is a generator that yields rounds and receives their replies. `Client.hold` runs it on an event loop,
`sync.hold` without one. Both retry a step while Redis cannot be reached, so every step must be safe to repeat.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar, cast

from fennelq.broker.verb import Step

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next step."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Found(Generic[A_co]):
    """Something that a conversation hands out on its way, before it ends."""

    value: A_co


Round = Sequence[Step[Any]] | Pause
"""Steps that share one round trip, or a pause."""
Talk = Generator[Round, Any, A]
"""A conversation that returns an `A`."""
Finding = Generator[Round | Found[A], Any, None]
"""A conversation that hands out any number of `A`; `Finds` reads it."""


def ask(step: Step[A]) -> Talk[A]:
    """One step; returns its reply."""
    (reply,) = yield [step]
    return cast("A", reply)


def ask_all(steps: Iterable[Step[A]]) -> Talk[list[A]]:
    """Several steps in one round trip; returns their replies in order."""
    asked = list(steps)
    return cast("list[A]", (yield asked)) if asked else []


def together(talks: Iterable[Talk[A]]) -> Talk[list[A]]:
    """Several conversations side by side; each round trip carries the next steps of all. None of them may pause."""
    every = list(talks)
    values: list[Any] = [None] * len(every)
    replies: dict[int, list[Any] | None] = dict.fromkeys(range(len(every)))
    while True:
        steps: dict[int, Sequence[Step[Any]]] = {}
        for place, reply in replies.items():
            try:
                said = every[place].send(reply)
            except StopIteration as end:
                values[place] = end.value
            else:
                assert not isinstance(said, Pause), "a conversation that shares its round trips may not pause"
                steps[place] = said
        if not steps:
            return values
        answers = iter(cast("list[Any]", (yield [step for some in steps.values() for step in some])))
        replies = {place: list(islice(answers, len(some))) for place, some in steps.items()}


def pause(seconds: float) -> Talk[None]:
    """Wait so long before the next step."""
    yield Pause(seconds)


class Finds(Generic[A]):
    """Reads what a conversation hands out, one at a time, as part of another conversation."""

    def __init__(self, finding: Finding[A]) -> None:
        self._finding = finding

    def next(self) -> Talk[A | None]:
        """The next one; None at the end."""
        reply: Any = None
        while True:
            try:
                said = self._finding.send(reply)
            except StopIteration:
                return None
            if isinstance(said, Found):
                return said.value
            reply = yield said
