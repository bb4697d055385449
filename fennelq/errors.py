"""Every error fennelq raises on purpose, as one tree.

    FennelqError
    ├── ConfigurationError      the settings, the app or the deployment are wrong
    ├── UnknownTask             no task of this name is registered
    ├── UnknownSchedule         no schedule has this name
    ├── UnreadableSchedule      only a later version can read this schedule
    ├── InvalidArguments        a call does not fit the task's signature
    │   └── UnknownArgument     it has an argument that the task in this worker does not take
    ├── InvalidJobId            (also a ValueError) the text is not a job id
    ├── UsageError              (also a TypeError) a method was given a value of the wrong kind
    ├── PayloadTooLarge         arguments or result exceed `max_payload_bytes`
    ├── DuplicateJob            this job id is taken by another call
    ├── BrokerUnavailable       Redis did not reply in time, or cannot be used; the outcome may be unknown
    ├── EnqueueFailed           some jobs of a bulk call were refused; the others were sent
    ├── ResultTimeout           (also a TimeoutError) the job has not ended yet
    └── JobError                the job ended without a value
        ├── TaskFailed
        ├── JobCancelled
        ├── JobExpired
        └── ResultExpired

Errors carry facts as attributes; their text describes what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fennelq.model.job import Job


class FennelqError(Exception):
    """The root: catch this to catch every error that fennelq raises on purpose. All keep their facts when pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, pickle makes an exception from its text. These are made from other arguments.
        return _as_it_was, (type(self), self.args), self.__dict__


def _as_it_was(kind: type[FennelqError], args: tuple[Any, ...]) -> FennelqError:
    error = kind.__new__(kind, *args)
    error.args = args  # `__new__` of an OSError, such as ResultTimeout, does not set it
    return error


class ConfigurationError(FennelqError):
    """The settings, the app or the deployment are wrong; the text names the cause and the correction."""


class UnknownTask(FennelqError):
    """No task of this name is registered in this process."""

    def __init__(self, task: str, known: Iterable[str] = ()) -> None:
        self.task = task
        shown = task if len(task) <= 200 else f"{task[:200]}…"
        super().__init__(f"unknown task {shown!r}{suggestion(task, known)}")


class UnknownSchedule(FennelqError):
    """No schedule has this name."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        super().__init__(f"no schedule {name[:200]!r}{suggestion(name, known)}")


class UnreadableSchedule(FennelqError):
    """A schedule in Redis cannot be read here: a later version has written it, or it was changed by hand."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(
            f"schedule {name[:200]!r} cannot be read, perhaps a later version has written it: {reason}"
        )


class InvalidArguments(FennelqError):
    """A call does not fit the task's signature, or a value cannot be encoded; `parameter` names which."""

    def __init__(self, task: str, reason: str, parameter: str | None = None) -> None:
        self.task, self.reason, self.parameter = task, reason, parameter
        where = f"{task}, parameter {parameter!r}" if parameter else task
        super().__init__(f"{where}: {reason}")


class UnknownArgument(InvalidArguments):
    """A job has an argument that the task in this worker does not take: during a deploy, the sender's code is newer."""


class InvalidJobId(FennelqError, ValueError):
    """The text is not a job id: an id reads `queue:key`, both 1-128 of `A-Z a-z 0-9 _ . -`."""

    def __init__(self, job_id: object) -> None:
        self.job_id = job_id if isinstance(job_id, str | bytes | int | None) else str(job_id)[:140]
        super().__init__(_not_an_id(job_id))


def _not_an_id(given: object) -> str:
    if isinstance(given, str):
        shown = repr(given[:140])
    elif isinstance(inner := getattr(given, "id", None), str):
        return f"{a_kind_of(given)} is not a job id: pass its id, {inner[:140]!r}"
    else:
        shown = a_kind_of(given)
    return (
        f"{shown} is not a job id: it reads queue:key, like 'mail:0199c0de…', both 1-128 of A-Z a-z 0-9 _ . -"
    )


class UsageError(FennelqError, TypeError):
    """A method got a value of the wrong kind; the text has the right call."""


class PayloadTooLarge(FennelqError):
    """The encoded value is larger than `max_payload_bytes`; it was not sent."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(
            f"{what} take {size:,} bytes, more than max_payload_bytes ({limit:,}): "
            "store the data elsewhere and send a reference, or raise the setting"
        )


class DuplicateJob(FennelqError):
    """A job with this id exists and is another call: another task or other arguments."""

    def __init__(self, job_id: str, task: str) -> None:
        self.job_id, self.task = job_id, task
        super().__init__(f"job id {job_id!r} already belongs to another call (of {task}): choose another id")


class BrokerUnavailable(FennelqError):
    """Redis could not be reached in time, or cannot be used as it is configured. The text names the URL, the cause and
    the cure; `url` (without its password), `reason` and `cure` are its parts. If it is not `retriable`, waiting does
    not help, for example with a wrong password: then fennelq raises it at once.

    Whether `jobs` were sent may be unknown; `await app.enqueue(error.jobs)` completes them without making duplicates.
    """

    def __init__(
        self,
        reason: str,
        jobs: Sequence[Job[Any]] = (),
        *,
        url: str = "",
        cure: str = "",
        retriable: bool = True,
    ) -> None:
        self.reason, self.jobs = reason, list(jobs)
        self.url, self.cure, self.retriable = url, cure, retriable
        super().__init__(f"Redis at {url} {reason}. {cure}" if url else f"Redis is not available: {reason}")

    def concerning(self, jobs: Sequence[Job[Any]]) -> BrokerUnavailable:
        """The same error about other jobs."""
        other = BrokerUnavailable(self.reason, jobs, url=self.url, cure=self.cure, retriable=self.retriable)
        return _caused(other, self.__cause__)


def _caused(error: BrokerUnavailable, cause: BaseException | None) -> BrokerUnavailable:
    error.__cause__ = cause
    return error


class EnqueueFailed(FennelqError):
    """Some jobs of a bulk call were refused, and the others were sent. `failures` maps the index of each refused job to
    its error; `handles` has the handle of each sent job at its index, and None for the refused ones."""

    def __init__(self, failures: Mapping[int, Exception], handles: Sequence[Any]) -> None:
        self.failures, self.handles = dict(failures), list(handles)
        first = min(self.failures)
        super().__init__(
            f"{len(self.failures)} of {len(self.handles)} jobs were refused, the others were sent; "
            f"first: job {first}: {self.failures[first]}"
        )


class ResultTimeout(FennelqError, TimeoutError):
    """The job has not ended within the time given; it goes on, and `get` may be called again.

    `reason` describes what the job waits for, or which executor runs it. If Redis did not reply, or too many results
    timed out at once to look all of them up, it describes that. It is None with `timeout=0`, if the job has ended in
    the meantime, and if Redis refuses the lookup, for example because this user may not read the keys.
    """

    def __init__(self, job_id: str, timeout: float, reason: str | None = None) -> None:
        self.job_id, self.timeout, self.reason = job_id, timeout, reason
        because = f": {reason}. The job is kept" if reason else "; it goes on"
        super().__init__(f"job {job_id} has not ended after {timeout:g} s{because}: ask again, or cancel it")


class JobError(FennelqError):
    """The job ended without a value."""

    job_id: str = ""


class TaskFailed(JobError):
    """The task raised an exception and no retry was left, or the job could not be run at all."""

    def __init__(
        self, job_id: str, error_type: str, message: str, traceback: str = "", tries: int = 0
    ) -> None:
        self.job_id, self.error_type, self.message = job_id, error_type, message
        self.traceback, self.tries = traceback, tries
        count = "1 try" if tries == 1 else f"{tries} tries"
        super().__init__(f"job {job_id} failed after {count}: {error_type}: {message}")


class JobCancelled(JobError):
    """The job was cancelled and will not run."""

    def __init__(self, job_id: str, reason: str = "cancelled") -> None:
        self.job_id, self.reason = job_id, reason
        super().__init__(f"job {job_id} was cancelled ({reason})")


class JobExpired(JobError):
    """The job's `expires` passed before it could start."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} expired before it could start")


class ResultExpired(JobError):
    """The job has no record, or its result is no longer kept: it is unknown or expired."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} is unknown or its result has expired (see result_ttl)")


def a_kind_of(value: object) -> str:
    """A description of a value: `a UUID object`, `None`."""
    if value is None:
        return "None"
    name = type(value).__name__[:100]
    article = "an" if name[:1] in "AEIOaeio" or name[:2] in ("Un", "un") else "a"
    return f"{article} {name} object"


def suggestion(name: str, known: Iterable[str]) -> str:
    """`: did you mean 'x'?` when a known name is close to `name`, else a list of the known names."""
    choices = sorted(known)
    if not choices:
        return ""
    if near := get_close_matches(name[:200], choices, n=1):
        return f": did you mean {near[0]!r}?"
    shown = ", ".join(choices[:8]) + (", …" if len(choices) > 8 else "")
    return f"; known: {shown}"
