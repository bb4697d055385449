"""A verb is a value: what to say to Redis, and how to read the answer. It sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from fennelq.broker.scripts import Script

A = TypeVar("A")

Word = str | bytes | int


class Verb(NamedTuple, Generic[A]):
    """One script call on one slot."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Word]
    read: Callable[[Any], A]

    @property
    def name(self) -> str:
        """Of the script; crash points are named after it."""
        return self.script.name

    def by_sha(self) -> list[Word]:
        """The words of the call, for a server that knows the script."""
        return ["EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args]

    def by_source(self) -> list[Word]:
        """The words of the call, for a server that has to learn the script."""
        return ["EVAL", self.script.source, len(self.keys), *self.keys, *self.args]


class Command(NamedTuple, Generic[A]):
    """A plain Redis command, for inspection: it changes no job."""

    words: Sequence[Word]
    read: Callable[[Any], A]

    @property
    def name(self) -> str:
        """Of its script: a plain command has none."""
        return ""

    def by_sha(self) -> Sequence[Word]:
        """The words of the command."""
        return self.words

    def by_source(self) -> Sequence[Word]:
        """The words of the command."""
        return self.words


Step = Verb[A] | Command[A]
"""What a broker can send."""


def as_is(reply: Any) -> Any:
    """The reply itself."""
    return reply


def fields_of(flat: Sequence[Any]) -> dict[str, str]:
    """The fields of a stream entry or a hash, from the flat list that a server replies with."""
    return {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat), 2)}


def text(value: Any) -> str:
    """A reply's bytes as text; what is not UTF-8 is shown escaped rather than refused."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
