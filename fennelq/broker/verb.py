"""A verb is a value: it describes a call of Redis and how to read its reply. A broker sends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from fennelq.broker.scripts import Script

A = TypeVar("A")

Word = str | bytes | int

MOST_JOBS: Final = 100
"""Jobs per script call. More would not be faster, and would block the server for longer."""

_OF_A_SERVER: Final = ("TIME", "INFO", "CLIENT", "CONFIG", "EVAL")
"""Commands without a key. EVAL is one of them for the preflight, whose script uses no key; all other scripts are
verbs."""
_KEY_AFTER: Final = {"XINFO": 2}
"""The index of the word that is the key, when it is not 1."""


class Verb(NamedTuple, Generic[A]):
    """One script call on one slot."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Word]
    read: Callable[[Any], A]

    @property
    def name(self) -> str:
        """The name of the script. Crash points contain it as well."""
        return self.script.name

    @property
    def key(self) -> str:
        """The key that routes the call: all its keys are in the slot of this one."""
        return self.keys[0]

    def by_sha(self) -> list[Word]:
        """The words of the call, for a server that knows the script."""
        return [f"EVALSHA{self._suffix}", self.script.sha, len(self.keys), *self.keys, *self.args]

    def by_source(self) -> list[Word]:
        """The words of the call, for a server that does not know the script."""
        return [f"EVAL{self._suffix}", self.script.source, len(self.keys), *self.keys, *self.args]

    @property
    def _suffix(self) -> str:
        # EVALSHA asks for the right to write its keys, whatever the script does.
        return "_RO" if self.script.read_only else ""


class Command(NamedTuple, Generic[A]):
    """A plain Redis command, for inspection: it changes no job."""

    words: Sequence[Word]
    read: Callable[[Any], A]

    @property
    def name(self) -> str:
        """Empty: a plain command calls no script."""
        return ""

    @property
    def key(self) -> str | None:
        """The key that routes the command; None when it is about the server and not about a key."""
        if self.words[0] in _OF_A_SERVER:
            return None
        return str(self.words[_KEY_AFTER.get(str(self.words[0]), 1)])

    def by_sha(self) -> Sequence[Word]:
        """The words of the command."""
        return self.words

    def by_source(self) -> Sequence[Word]:
        """The words of the command."""
        return self.words


Step = Verb[A] | Command[A]
"""A call that a broker can send."""


def as_is(reply: Any) -> Any:
    """The reply itself."""
    return reply


def fields_of(flat: Sequence[Any]) -> dict[str, str]:
    """The fields of a stream entry or a hash, from the flat list that a server replies with."""
    return {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat), 2)}


def text(value: Any) -> str:
    """A reply's bytes as text. Bytes that are not UTF-8 are escaped: an inspection must not fail because of them."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
