"""What an error of the server or a connection means and asks for: one table for all that retries."""

from __future__ import annotations

from enum import Enum
from typing import Final


class ReplyError(Exception):
    """An error the server answered with; `word` is the first word of its text, by which it is classified."""

    def __init__(self, text: str) -> None:
        self.word = text.partition(" ")[0].lstrip("-")
        super().__init__(text)


class Trouble(Enum):
    """Kinds of errors, by what helps."""

    FATAL = "wrong credentials or permissions: only a person helps"
    CONNECTION = "no answer: reconnect and try again; whether the call was executed is unknown"
    ROLE = "this server may not write now: reconnect, look for the primary"
    CAPACITY = "memory, disk or clients are exhausted: wait; nothing was written"
    GROUP = "a stream or its group is gone: make it again and go on"
    SCRIPT = "the server has forgotten the script: send its source"
    BUG = "the call itself is wrong: repeating it does not help"

    @property
    def passes(self) -> bool:
        """Whether waiting and trying again may help."""
        return self in (Trouble.CONNECTION, Trouble.ROLE, Trouble.CAPACITY)


_BY_WORD: Final = {
    "NOGROUP": Trouble.GROUP,
    "UNBLOCKED": Trouble.GROUP,
    "NOSCRIPT": Trouble.SCRIPT,
    "MISCONF": Trouble.CAPACITY,
    "OOM": Trouble.CAPACITY,
    "NOREPLICAS": Trouble.CAPACITY,
    "BUSY": Trouble.CAPACITY,
    "READONLY": Trouble.ROLE,
    "MASTERDOWN": Trouble.ROLE,
    "LOADING": Trouble.CONNECTION,
    "TRYAGAIN": Trouble.CONNECTION,
    "CLUSTERDOWN": Trouble.CONNECTION,
    "NOAUTH": Trouble.FATAL,
    "WRONGPASS": Trouble.FATAL,
    "NOPERM": Trouble.FATAL,
    "DENIED": Trouble.FATAL,
}


def refuses_to_publish(error: ReplyError) -> bool:
    """Whether the server refuses a subscription and nothing else: no right to it, no room for one more connection.

    Other errors, such as a wrong password or a server that is loading, concern every command.
    """
    return error.word == "NOPERM" or classify(error) in (Trouble.CAPACITY, Trouble.BUG)


def classify(error: BaseException) -> Trouble:
    """The kind of trouble an error is."""
    if isinstance(error, ReplyError):
        if error.word == "ERR" and "max number of clients" in str(error):
            return Trouble.CAPACITY
        if error.word == "UNBLOCKED" and "instance state changed" in str(error):
            # A blocked read is ended by the demotion itself, before any command is answered with READONLY.
            return Trouble.ROLE
        return _BY_WORD.get(error.word, Trouble.BUG)
    return Trouble.CONNECTION if isinstance(error, OSError | EOFError) else Trouble.BUG
