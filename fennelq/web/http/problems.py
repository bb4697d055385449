"""Errors as `application/problem+json` (RFC 9457): a type, a status, a sentence that says what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from fennelq import log
from fennelq.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DuplicateJob,
    ExecutorUnavailable,
    FennelqError,
    HistoryUnavailable,
    ImportRefused,
    InvalidArguments,
    InvalidFilter,
    InvalidJobId,
    OperationBusy,
    PayloadTooLarge,
    QueueFull,
    QueuePaused,
    ReplayRefused,
    ResultExpired,
    UnknownExecutor,
    UnknownLimit,
    UnknownOperation,
    UnknownQueue,
    UnknownSchedule,
    UnknownTask,
)
from fennelq.manage.sending import KeyReused, NotJson, WrongCall
from fennelq.web.causes import in_a_line, refusal, traceback_of
from fennelq.web.gate import Rejected
from fennelq.web.http.rates import TooFast
from fennelq.web.http.writing import written
from fennelq.web.looks import Away
from fennelq.web.places import Busy
from fennelq.web.visit import Forbidden, NotFound

MEDIA: Final = "application/problem+json"
_logger = log.get("fennelq.web")


class OutcomeUnknown(FennelqError):
    """Redis did not reply in time, so it is not known whether these jobs were created."""

    def __init__(self, jobs: Sequence[str]) -> None:
        self.jobs = list(jobs)
        super().__init__(
            "Redis did not reply in time, so it is not known whether the job was created. Send the same request again: "
            "with the same Idempotency-Key, or with the queue and the job_id of `repeat_with` as options, it makes no "
            "second job."
        )


class NotBegun(FennelqError):
    """Redis does not answer, so the operation was not begun."""


class Gone(FennelqError):
    """The result of a job is not kept any more."""


class Kind(NamedTuple):
    """A kind of problem."""

    status: int
    slug: str
    """`type` is `urn:fennelq:` and this."""
    title: str


_KINDS: Final[tuple[tuple[type[FennelqError], Kind], ...]] = (
    (NotFound, Kind(404, "not-found", "Not found")),
    (NotJson, Kind(400, "malformed", "The body cannot be read")),
    (WrongCall, Kind(422, "wrong-call", "The call is wrong")),
    (KeyReused, Kind(422, "idempotency-key-reused", "The Idempotency-Key belongs to another call")),
    (UnknownTask, Kind(422, "unknown-task", "Unknown task")),
    (UnknownQueue, Kind(404, "unknown-queue", "Unknown queue")),
    (UnknownExecutor, Kind(404, "unknown-executor", "Unknown executor")),
    (UnknownSchedule, Kind(404, "unknown-schedule", "Unknown schedule")),
    (UnknownOperation, Kind(404, "unknown-operation", "Unknown operation")),
    (UnknownLimit, Kind(404, "unknown-limit", "Unknown limit")),
    (Forbidden, Kind(403, "not-allowed", "Not allowed")),
    (Gone, Kind(410, "result-expired", "The result has expired")),
    (ResultExpired, Kind(404, "unknown-job", "Unknown job")),
    (DuplicateJob, Kind(409, "duplicate-job", "The id or the key belongs to another call")),
    (OperationBusy, Kind(409, "operation-busy", "Another process performs the operation")),
    (QueuePaused, Kind(409, "queue-paused", "The queue takes no jobs")),
    (QueueFull, Kind(429, "queue-full", "The queue is full")),
    (TooFast, Kind(429, "too-many-calls", "Too many calls")),
    (Busy, Kind(429, "too-many-waits", "Too many waits")),
    (PayloadTooLarge, Kind(413, "too-large", "Too large")),
    (InvalidJobId, Kind(422, "invalid-job-id", "Not the id of a job")),
    (InvalidFilter, Kind(422, "invalid-filter", "The filter is not valid")),
    (InvalidArguments, Kind(422, "wrong-call", "The arguments do not fit")),
    (ReplayRefused, Kind(422, "replay-refused", "The new arguments do not fit")),
    (ImportRefused, Kind(422, "import-refused", "The lines cannot be imported")),
    (ConfigurationError, Kind(422, "not-valid", "Not done")),
    (ExecutorUnavailable, Kind(504, "executor-unavailable", "The executor does not answer")),
    (HistoryUnavailable, Kind(503, "history-unavailable", "The history cannot be read")),
)
_OTHER: Final = Kind(409, "conflict", "Not done")
_AWAY: Final = Kind(503, "redis-unavailable", "Redis does not answer")
_SIGN_IN: Final = (
    "Send the header Authorization: Bearer TOKEN, with a valid token: `fennelq token add` makes one."
)
_SLUGS: Final = {
    400: "malformed",
    401: "not-signed-in",
    403: "not-allowed",
    404: "not-found",
    405: "method-not-allowed",
    408: "too-slow",
    413: "too-large",
    415: "unsupported-media-type",
    429: "too-many-failures",
    503: "sign-in-unavailable",
}


class Problem(NamedTuple):
    """Why a request could not be answered."""

    kind: Kind
    detail: str
    headers: Mapping[str, str] = {}
    more: Mapping[str, Any] = {}

    @property
    def document(self) -> dict[str, Any]:
        """The members of the JSON object."""
        return {
            "type": f"urn:fennelq:{self.kind.slug}",
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            **self.more,
        }

    @property
    def response(self) -> Response:
        """The answer."""
        return Response(
            written(self.document), self.kind.status, {**self.headers, "Cache-Control": "no-store"}, MEDIA
        )


def problem_of(error: Exception, *, changing: bool) -> Problem:
    """The problem with a request; `changing` when it was going to change something."""
    if isinstance(error, Rejected):
        slug = _SLUGS.get(error.status, "refused")
        text = _SIGN_IN if error.status == 401 else error.text
        return Problem(Kind(error.status, slug, error.title), text, error.headers)
    if isinstance(error, OutcomeUnknown):
        return Problem(_AWAY, str(error), {"Retry-After": "1"}, {"repeat_with": _ids(error.jobs)})
    if isinstance(error, NotBegun):
        return _away(changing=False)
    if isinstance(error, Away | TimeoutError) or (isinstance(error, BrokerUnavailable) and error.retriable):
        return _away(changing=changing)
    if isinstance(error, BrokerUnavailable):
        return Problem(
            Kind(503, "redis-refuses", "Redis refuses this"), refusal(error), {"Retry-After": "30"}
        )
    if isinstance(error, FennelqError):
        return _known(error)
    _logger.error("request_failed", error=in_a_line(error), traceback=traceback_of(error))
    return Problem(
        Kind(500, "bug", "This is a bug"), "The log of this process has the error. Nothing else is affected."
    )


def _away(*, changing: bool) -> Problem:
    unsure = "It is not known whether this was done: look again when Redis answers, and into the audit log."
    text = (
        unsure
        if changing
        else "Redis does not reply, and nothing was done: send the request again in a second."
    )
    return Problem(_AWAY, text, {"Retry-After": "1"})


def _known(error: FennelqError) -> Problem:
    kind = next((kind for known, kind in _KINDS if isinstance(error, known)), _OTHER)
    headers: dict[str, str] = {}
    more: dict[str, Any] = {}
    if isinstance(error, TooFast):
        headers["Retry-After"] = str(math.ceil(error.wait))
    elif isinstance(error, QueueFull | QueuePaused | HistoryUnavailable):
        headers["Retry-After"] = "10"
    elif isinstance(error, Busy):
        headers["Retry-After"] = "1"
    if isinstance(error, WrongCall):
        more["errors"] = [fault._asdict() for fault in error.faults]
    elif isinstance(error, UnknownTask):
        more["errors"] = [{"pointer": "/task", "detail": str(error)}]
    elif isinstance(error, KeyReused | DuplicateJob):
        more["job"] = error.job_id
    return Problem(kind, str(error), headers, more)


def _ids(jobs: Sequence[str]) -> list[dict[str, str]]:
    split = (job.partition(":") for job in jobs)
    return [{"queue": queue, "job_id": key} for queue, _, key in split]
