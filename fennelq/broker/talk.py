"""A conversation is a sequence of steps with Redis, written once for code with and without an event loop.

It is a generator that yields rounds and receives their replies. `Broker.converse` runs it on an event loop,
`BlockingBroker.converse` without one. Both send each round once. Only `patient` repeats a round while Redis cannot be
reached, so every step of a conversation inside `patient` must be safe to repeat.

The error of a step is the reply to this step. So it reaches only the conversation that sent the step, even when many
conversations share a round trip.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar, cast

from fennelq import clock
from fennelq.broker.patience import Patience
from fennelq.broker.trouble import classify
from fennelq.broker.verb import Step
from fennelq.errors import BrokerUnavailable

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next step."""

    seconds: float


class Within(NamedTuple):
    """Steps that share one round trip, which may take at most this many seconds."""

    steps: Sequence[Step[Any]]
    seconds: float


@dataclass(frozen=True, slots=True)
class Found(Generic[A_co]):
    """A value that a conversation yields to its reader before it ends."""

    value: A_co


Round = Sequence[Step[Any]] | Within | Pause
"""Steps that share one round trip, or a pause."""
Replies = Sequence[Any]
"""One reply for each step of a round, in order: the value read from the reply of the server, or an error."""
Talk = Generator[Round, Any, A]
"""A conversation that returns an `A`."""
Finding = Generator[Round | Found[A], Any, None]
"""A conversation that yields any number of `A`; `Finds` reads them."""


# Steps


def ask(step: Step[A]) -> Talk[A]:
    """One step: returns its reply or raises its error."""
    (reply,) = yield [step]
    if isinstance(reply, BaseException):
        raise reply
    return cast("A", reply)


def ask_all(steps: Iterable[Step[A]]) -> Talk[list[A]]:
    """Several steps in one round trip: returns their replies in order, or raises the first error among them."""
    asked = list(steps)
    if not asked:
        return []
    replies: Replies = yield asked
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    return cast("list[A]", replies)


def pause(seconds: float) -> Talk[None]:
    """Wait for this time before the next step."""
    yield Pause(seconds)


# Conversations that consist of others


def together(talks: Iterable[Talk[A]]) -> Talk[list[A]]:
    """Several conversations side by side; each round trip carries the next steps of all. None of them may pause.

    Each conversation receives only the errors of its own steps. When one of them raises, all of them end.
    """
    every = list(talks)
    values: list[Any] = [None] * len(every)
    replies: dict[int, Replies | None] = dict.fromkeys(range(len(every)))
    try:
        while True:
            steps: dict[int, Sequence[Step[Any]]] = {}
            for place, reply in replies.items():
                try:
                    asked = every[place].send(reply)
                except StopIteration as end:
                    values[place] = end.value
                else:
                    assert not isinstance(asked, Pause | Within), "a conversation in `together` may not pause"
                    steps[place] = asked
            if not steps:
                return values
            received: Iterable[Any] = iter((yield [step for some in steps.values() for step in some]))
            replies = {place: list(islice(received, len(some))) for place, some in steps.items()}
    finally:
        for talk in every:
            talk.close()


def patient(talk: Talk[A], patience: Patience) -> Talk[A]:
    """The same conversation, which repeats steps after temporary errors, for as long as the patience lasts.

    Every complete round renews the patience. When it ends, the steps without a reply get a BrokerUnavailable. The time
    between two rounds does not count: the conversation may pause, or call a function of the user.
    """
    replies: Replies | None = None
    complete = False
    try:
        while True:
            asked = talk.send(replies)
            if isinstance(asked, Pause | Within):
                replies = yield asked
                continue
            if complete:
                patience.renew()
            try:
                received: Replies = yield Within(asked, patience.left())
            except BrokerUnavailable as error:
                replies = [error] * len(asked)
                continue
            for reply in received:
                if isinstance(reply, Exception):
                    received = yield from _repeated(asked, list(received), patience)
                    break
            complete = not any(isinstance(reply, BrokerUnavailable) for reply in received)
            if complete:
                patience.renew()
            replies = received
    except StopIteration as end:
        return cast("A", end.value)
    finally:
        talk.close()


def _repeated(steps: Sequence[Step[Any]], replies: list[Any], patience: Patience) -> Talk[Replies]:
    """The replies, after repeating the steps that had temporary errors."""
    while again := [place for place, reply in enumerate(replies) if _passes(reply)]:
        yield Pause(patience.pause_after(replies[again[-1]]))
        try:
            received: Replies = yield Within([steps[place] for place in again], patience.left())
        except BrokerUnavailable as error:
            return [error if _passes(reply) else _final(reply, patience) for reply in replies]
        for place, reply in zip(again, received, strict=True):
            replies[place] = reply
    patience.renew()
    return [_final(reply, patience) for reply in replies]


def _final(reply: Any, patience: Patience) -> Any:
    return patience.verdict(reply) if isinstance(reply, Exception) else reply


def _passes(reply: object) -> bool:
    return isinstance(reply, Exception) and classify(reply).passes


def at_most(seconds: float, talk: Talk[A]) -> Talk[A]:
    """The same conversation, with at most `seconds` for all its rounds together. Later steps get a TimeoutError as
    their reply. No step is repeated."""
    deadline = clock.monotonic() + seconds
    replies: Replies | None = None
    with closing(talk):
        while True:
            try:
                asked = talk.send(replies)
            except StopIteration as end:
                return cast("A", end.value)
            assert not isinstance(asked, Pause | Within), "a conversation in `at_most` may not pause"
            replies = yield Within(asked, max(0.001, deadline - clock.monotonic()))


class Finds(Generic[A]):
    """Reads the values that a conversation yields, one at a time, as part of another conversation."""

    def __init__(self, finding: Finding[A]) -> None:
        self._finding = finding

    def next(self) -> Talk[A | None]:
        """The next value; None at the end."""
        replies: Any = None
        while True:
            try:
                asked = self._finding.send(replies)
            except StopIteration:
                return None
            if isinstance(asked, Found):
                return asked.value
            replies = yield asked
