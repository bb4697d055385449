"""Errors as callers and as the log of a server may see them.

Their messages may have texts of callers. These must not look like lines of the log, nor drive a terminal: also where
the program that mounts a server writes the log.
"""

from __future__ import annotations

from traceback import format_tb
from typing import Final

from fennelq.errors import BrokerUnavailable

_LONGEST: Final = 2000
_MOST: Final = 10
"""Errors of which one is the cause of the next."""


def refusal(error: BrokerUnavailable) -> str:
    """Why Redis refuses something, for a program: without the address of Redis, which callers need not know."""
    return f"Redis {error.reason}. {error.cure}".strip()


def in_a_line(error: BaseException) -> str:
    """The error in a line, with its message escaped."""
    try:
        message = str(error)
    except Exception as failure:
        message = f"its message cannot be read: {type(failure).__name__}"
    return f"{type(error).__qualname__}: {message[:_LONGEST]!a}"


def traceback_of(error: BaseException) -> str:
    """Where the error came from, and its causes, the first one first."""
    parts: list[str] = []
    one: BaseException | None = error
    while one is not None and len(parts) < _MOST:
        parts.append(f"{''.join(format_tb(one.__traceback__))}{in_a_line(one)}\n")
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return "which led to:\n".join(reversed(parts))
