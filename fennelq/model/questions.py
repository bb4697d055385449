"""A question of a person to one executor, as a message on its channel: a word, the id of the request, and perhaps more.

The executor answers under the id of the request, and only while the client that has asked still waits.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from fennelq.model.units import TEN_YEARS

STACKS: Final = "stacks"
"""Asks for the stacks of its threads and asyncio tasks."""
DRAIN: Final = "drain"
"""Asks it to take no more jobs, to finish those that run, and to end."""
PROFILE: Final = "profile"
"""Asks it to count for some seconds which code runs."""
_REPLACE: Final = "replace"
_GRACE: Final = "grace"
LONGEST_GRACE: Final = TEN_YEARS
"""Seconds that running jobs may get, at most."""

LONGEST_PROFILE: Final = 600.0
"""Seconds of a profile, at most."""
_MEMORY: Final = "memory"
_FOR: Final = "ms"
_BY: Final = "by"
_WHO_BYTES: Final = 30

_QUESTION: Final = re.compile(r"([a-z]{1,20}) ([A-Za-z0-9]{8,64})(?: ([a-z0-9 .]{0,100}))?")


class Question(NamedTuple):
    """A message to an executor."""

    word: str
    request: str
    more: str = ""

    @property
    def text(self) -> str:
        """The message."""
        return " ".join(filter(None, self))

    @classmethod
    def read(cls, text: str) -> Question | None:
        """The question in a message; None when it has none."""
        found = _QUESTION.fullmatch(text)
        return None if found is None else cls(found[1], found[2], found[3] or "")


def new_question(word: str, more: str = "") -> Question:
    """A question with an id of its own."""
    return Question(word, os.urandom(12).hex(), more)


class Drain(NamedTuple):
    """How an executor should end, when it is drained."""

    replace: bool = False
    """Whether its supervisor starts a successor."""
    grace: float | None = None
    """Seconds that running jobs get to finish; None for those that its worker was started with."""
    ignored: str = ""
    """What a message has instead of a grace period that can be used. Any client may publish anything."""

    @property
    def more(self) -> str:
        """The rest of the message."""
        grace = "" if self.grace is None else f"{_GRACE} {round(self.grace * 1000)}"
        return " ".join(filter(None, (_REPLACE if self.replace else "", grace)))

    @classmethod
    def read(cls, more: str) -> Drain:
        """The rest of a message. Words that only a later version knows are ignored, and so is a grace period that
        makes no sense."""
        words = more.split()
        if _GRACE not in words:
            return cls(_REPLACE in words)
        word = "".join(words[words.index(_GRACE) + 1 :][:1])
        # Whole milliseconds: `int` and `float` also read `1_000`, `-1`, `nan` and `inf`.
        grace = int(word) / 1000 if re.fullmatch(r"[0-9]{1,20}", word) else LONGEST_GRACE + 1
        if grace > LONGEST_GRACE:
            return cls(_REPLACE in words, ignored=f"{_GRACE} {word}".strip())
        return cls(_REPLACE in words, grace)


class Profiling(NamedTuple):
    """How an executor is to be profiled."""

    seconds: float
    memory: bool = False
    """Count the bytes that code allocates and keeps, instead of the time that it takes."""
    who: str = ""
    """The user who asks, and the host: the next one who asks meanwhile is told. At most 30 bytes are sent."""

    @property
    def more(self) -> str:
        """The rest of the message. The name is sent in hexadecimal digits, because a message has no other letters."""
        who = self.who.encode()[:_WHO_BYTES].hex()
        words = [
            _FOR,
            str(round(self.seconds * 1000)),
            _MEMORY if self.memory else "",
            f"{_BY} {who}" if who else "",
        ]
        return " ".join(filter(None, words))

    @classmethod
    def read(cls, more: str) -> Profiling | None:
        """The rest of a message; None when it makes no sense. Any client may publish anything."""
        words = more.split()
        ms, who = _after(words, _FOR), _after(words, _BY)
        if not re.fullmatch(r"[0-9]{1,9}", ms) or not 0 < int(ms) <= LONGEST_PROFILE * 1000:
            return None
        name = bytes.fromhex(who) if re.fullmatch(r"(?:[0-9a-f]{2})*", who) else b""
        return cls(int(ms) / 1000, _MEMORY in words, name.decode("utf-8", "ignore"))


def _after(words: list[str], word: str) -> str:
    """The word that follows this one; empty without."""
    return "".join(words[words.index(word) + 1 :][:1]) if word in words else ""
