"""The code of each error."""

from __future__ import annotations

from typing import Final

from grpc import StatusCode

from fennelq.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DuplicateJob,
    FennelqError,
    InvalidArguments,
    InvalidFilter,
    InvalidJobId,
    PayloadTooLarge,
    QueueFull,
    ResultExpired,
    UnknownQueue,
    UnknownTask,
)
from fennelq.manage.sending import KeyReused, NotJson, WrongCall
from fennelq.web.causes import refusal
from fennelq.web.places import Busy


class Refused(FennelqError):
    """A call that is refused with this code."""

    def __init__(self, code: StatusCode, text: str) -> None:
        self.code = code
        super().__init__(text)


_CODES: Final[tuple[tuple[type[Exception], StatusCode], ...]] = (
    (WrongCall, StatusCode.INVALID_ARGUMENT),
    (NotJson, StatusCode.INVALID_ARGUMENT),
    (InvalidArguments, StatusCode.INVALID_ARGUMENT),
    (InvalidJobId, StatusCode.INVALID_ARGUMENT),
    (InvalidFilter, StatusCode.INVALID_ARGUMENT),
    (ConfigurationError, StatusCode.INVALID_ARGUMENT),
    (UnknownTask, StatusCode.NOT_FOUND),
    (UnknownQueue, StatusCode.NOT_FOUND),
    (ResultExpired, StatusCode.NOT_FOUND),
    (DuplicateJob, StatusCode.ALREADY_EXISTS),
    (KeyReused, StatusCode.ALREADY_EXISTS),
    (QueueFull, StatusCode.RESOURCE_EXHAUSTED),
    (Busy, StatusCode.RESOURCE_EXHAUSTED),
    (PayloadTooLarge, StatusCode.RESOURCE_EXHAUSTED),
    (BrokerUnavailable, StatusCode.UNAVAILABLE),
    (TimeoutError, StatusCode.UNAVAILABLE),
    (FennelqError, StatusCode.FAILED_PRECONDITION),
)
_LONGEST_ENCODED: Final = 400
"""Characters; each takes up to twelve bytes."""
_AWAY: Final = "Redis does not answer: repeat the call in a second, with the same request_id"


def code_of(error: Exception) -> StatusCode:
    """The code of an error; INTERNAL for one that is a bug."""
    if isinstance(error, Refused):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), StatusCode.INTERNAL)


def text_of(error: Exception) -> str:
    """The message of an error."""
    code = code_of(error)
    if code is StatusCode.INTERNAL:
        return "this is a bug: the log of the server has the error"
    retriable = not isinstance(error, BrokerUnavailable) or error.retriable
    if code is StatusCode.UNAVAILABLE and retriable and not isinstance(error, Refused):
        return _AWAY
    return _cut(refusal(error) if isinstance(error, BrokerUnavailable) else str(error))


def _cut(text: str) -> str:
    """A message that every client takes: it travels in the headers of the reply, percent-encoded, and clients refuse
    headers of more than 8 KiB."""
    return text[:2000] if text.isascii() and text.isprintable() else text[:_LONGEST_ENCODED]
