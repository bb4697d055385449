"""Errors as pages: a status, a title, a sentence, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from starlette.exceptions import HTTPException

from fennelq import log
from fennelq.errors import (
    BrokerUnavailable,
    ConfigurationError,
    ExecutorUnavailable,
    FennelqError,
    HistoryUnavailable,
    InvalidArguments,
    InvalidFilter,
    InvalidJobId,
    PayloadTooLarge,
    UnknownExecutor,
    UnknownLimit,
    UnknownOperation,
    UnknownQueue,
    UnknownSchedule,
    UnknownTask,
)
from fennelq.web.causes import in_a_line, traceback_of
from fennelq.web.gate import Rejected
from fennelq.web.looks import Away
from fennelq.web.visit import Forbidden, NotFound

_logger = log.get("fennelq.web")

_STATUSES: Final[tuple[tuple[type[FennelqError], int, str], ...]] = (
    (NotFound, 404, "Not found"),
    (UnknownQueue, 404, "Unknown queue"),
    (UnknownTask, 404, "Unknown task"),
    (UnknownExecutor, 404, "Unknown executor"),
    (UnknownSchedule, 404, "Unknown schedule"),
    (UnknownOperation, 404, "Unknown operation"),
    (UnknownLimit, 404, "Unknown limit"),
    (Forbidden, 403, "Not allowed"),
    (InvalidJobId, 422, "Not the id of a job"),
    (InvalidFilter, 422, "The filter is not valid"),
    (InvalidArguments, 422, "The arguments do not fit"),
    (PayloadTooLarge, 422, "Too large"),
    (ConfigurationError, 422, "Not done"),
    (ExecutorUnavailable, 504, "The executor does not answer"),
    (HistoryUnavailable, 503, "The history cannot be read"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a request could not be answered."""

    status: int
    title: str
    text: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    is_away: bool = False
    """Whether Redis does not answer."""


def problem_of(error: Exception, *, changing: bool) -> Problem:
    """The problem with a request; `changing` when it was going to change something."""
    if isinstance(error, Rejected):
        return Problem(status=error.status, title=error.title, text=error.text, headers=error.headers)
    if isinstance(error, HTTPException):
        return Problem(status=error.status_code, title=error.detail, text="", headers=error.headers or {})
    if isinstance(error, Away | TimeoutError) or (isinstance(error, BrokerUnavailable) and error.retriable):
        unsure = (
            "It is not known whether this was done: look again when Redis answers, and into the audit log."
        )
        title, text = "Redis does not answer", unsure if changing else str(error)
        return Problem(status=503, title=title, text=text, headers={"Retry-After": "1"}, is_away=not changing)
    if isinstance(error, BrokerUnavailable):
        return Problem(status=503, title="Redis refuses this", text=str(error))
    if isinstance(error, FennelqError):
        for kind, status, title in _STATUSES:
            if isinstance(error, kind):
                headers = {"Retry-After": "10"} if status == 503 else {}
                return Problem(status=status, title=title, text=str(error), headers=headers)
        return Problem(status=409, title="Not done", text=str(error))
    _logger.error("request_failed", error=in_a_line(error), traceback=traceback_of(error))
    return Problem(
        status=500,
        title="This is a bug",
        text="The log of this process has the error. Nothing else is affected.",
    )
