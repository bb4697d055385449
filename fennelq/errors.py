"""Every error fennelq raises on purpose, as one tree.

    FennelqError
    ├── ConfigurationError      the settings, the app or the deployment are wrong
    │   └── HistoryRefused      the database of the history does not fit this app or this version
    ├── HistoryUnavailable      the database of the history is away, full, locked or read-only
    ├── UnknownTask             no task of this name is registered
    ├── UnknownQueue            the app has no queue of this name
    ├── UnknownSchedule         no schedule has this name
    ├── UnknownLimit            a queue has no limit of this name
    ├── UnknownExecutor         no executor has this name, or several have names that begin like it
    ├── ExecutorUnavailable     an executor does not answer a question
    ├── UnreadableSchedule      only a later version can read this schedule
    ├── UnknownOperation        no operation on jobs has this id
    ├── OperationBusy           another process performs this operation on jobs
    ├── InvalidArguments        a call does not fit the task's signature
    │   └── UnknownArgument     it has an argument that the task in this worker does not take
    ├── InvalidJobId            (also a ValueError) the text is not a job id
    ├── InvalidFilter           (also a ValueError) a filter of jobs cannot be read, or cannot be used here
    ├── UsageError              (also a TypeError) a method was given a value of the wrong kind
    ├── ReplayRefused           new arguments of a dead job do not fit: nothing was replayed
    ├── ImportRefused           lines of an export cannot be imported: nothing was imported
    ├── PayloadTooLarge         arguments or result exceed `max_payload_bytes`
    ├── DuplicateJob            this job id, or with on_duplicate="raise" this key, is taken by another call
    ├── BrokerUnavailable       Redis did not reply in time, or cannot be used; the outcome may be unknown
    ├── QueuePaused             a person has paused the queue: no job was created
    ├── QueueFull               so many jobs wait in the queue that it takes no more
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
from typing import TYPE_CHECKING, Any

from fennelq.wording import a_kind_of, suggestion

if TYPE_CHECKING:
    from fennelq.model.job import Job
    from fennelq.model.pause import QueuePause


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


class HistoryRefused(ConfigurationError):
    """The database of the history cannot be used by this version or this app. Waiting does not help."""


class HistoryUnavailable(FennelqError):
    """The database of the history cannot be used now: it is away, full, locked or read-only. The text says what to
    do."""


class UnknownTask(FennelqError):
    """No task of this name is registered in this process."""

    def __init__(self, task: str, known: Iterable[str] = ()) -> None:
        self.task = task
        shown = task if len(task) <= 200 else f"{task[:200]}…"
        super().__init__(f"unknown task {shown!r}{suggestion(task, known)}")


class UnknownQueue(FennelqError):
    """No task of the app belongs to this queue, and no job was ever sent to it."""

    def __init__(self, queue: str, known: Iterable[str] = ()) -> None:
        self.queue = queue
        super().__init__(f"queue {queue[:140]!r} does not exist{suggestion(queue, known)}")


class UnknownSchedule(FennelqError):
    """No schedule has this name."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        super().__init__(f"no schedule {name[:200]!r}{suggestion(name, known)}")


class UnknownLimit(FennelqError):
    """A queue has no limit of this name."""

    def __init__(self, name: str, queue: str, known: Iterable[str] = ()) -> None:
        self.name, self.queue = name, queue
        super().__init__(f"queue {queue!r} has no limit {name[:200]!r}{suggestion(name, set(known))}")


class UnknownOperation(FennelqError):
    """No operation on jobs has this id, or it ended more than thirty days ago."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        super().__init__(f"no operation {operation[:140]!r}: `fennelq op list` shows them")


class OperationBusy(FennelqError):
    """Another process performs this operation on jobs, and has reported lately."""

    def __init__(self, operation: str, by: str) -> None:
        self.operation, self.by = operation, by
        super().__init__(
            f"operation {operation} is being performed by {by[:200]}. Stop it first, or wait until that process has "
            "been silent for 30 s"
        )


class UnknownExecutor(FennelqError):
    """No executor has this name, or the names of several begin like it: `matching` lists these."""

    def __init__(self, name: str, known: Iterable[str] = (), matching: Sequence[str] = ()) -> None:
        self.name, self.matching = name, list(matching)
        if self.matching:
            shown = ", ".join(self.matching[:8]) + (", …" if len(self.matching) > 8 else "")
            super().__init__(
                f"{len(self.matching)} executors have names that begin with {name[:200]!r}: {shown}. "
                "Write more of the name"
            )
        else:
            super().__init__(f"no executor {name[:200]!r}{suggestion(name, known)}")


class ExecutorUnavailable(FennelqError):
    """An executor does not answer a question, so nothing was done: it has ended, does not listen, or its process does
    not run. `reason` describes which."""

    def __init__(self, executor: str, reason: str) -> None:
        self.executor, self.reason = executor, reason
        super().__init__(f"executor {executor} {reason}")


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
    """The text is not a job id: an id has the form `queue:key`, each part with 1-128 of `A-Z a-z 0-9 _ . -`."""

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
        f"{shown} is not a job id: an id has the form queue:key, like 'mail:0199c0de…', each part with 1-128 of "
        "A-Z a-z 0-9 _ . -"
    )


class InvalidFilter(FennelqError, ValueError):
    """A filter of jobs cannot be read, or cannot be used for this; the text says what to write instead."""


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


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith(("?", ".")) else f"{sentence}."


class ReplayRefused(FennelqError):
    """New arguments of a dead job do not fit its task, or could not be computed. Nothing was replayed."""

    def __init__(self, job_id: str, number: int, fitting: int, error: FennelqError) -> None:
        self.job_id, self.number, self.error = job_id, number, error
        self.fitting = fitting
        """The number of jobs before it that could be replayed."""
        self.parameter: str | None = getattr(error, "parameter", None)
        """The parameter whose argument does not fit; None when another one is the problem."""
        advice = f": pass continue_=True to replay the {fitting} before it" if fitting else ""
        super().__init__(f"{_ended(self.why)} Nothing was replayed{advice}")

    @property
    def why(self) -> str:
        """The job, and its problem."""
        return f"job {self.job_id} (number {self.number:,} of those selected): {self.error}"


class ImportRefused(FennelqError):
    """Lines of an export cannot be imported. Nothing was imported."""

    def __init__(self, problems: Sequence[tuple[int, FennelqError]], more: int = 0) -> None:
        self.problems = problems
        """The numbers of the first lines that cannot be imported, with their errors."""
        self.more = more
        """The number of further lines that cannot be imported."""
        super().__init__(
            f"{_ended(self.why)} Nothing was imported: pass continue_=True to import the other lines"
        )

    @property
    def why(self) -> str:
        """The lines, and their problems."""
        lines = "; ".join(f"line {number}: {error}" for number, error in self.problems)
        return f"{lines}; and {self.more:,} more lines" if self.more else lines


class DuplicateJob(FennelqError):
    """A job with this id exists and is another call: another task or other arguments. Or, with
    `on_duplicate="raise"`, an earlier call with this `key` holds it: `job_id` is its job."""

    def __init__(self, job_id: str, task: str, key: str | None = None) -> None:
        self.job_id, self.task, self.key = job_id, task, key
        super().__init__(
            f"job id {job_id!r} already belongs to another call (of {task}): choose another id"
            if key is None
            else f"no job was sent: an earlier call of {task} holds the key {key!r}, its job is {job_id}"
        )


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


class QueuePaused(FennelqError):
    """A person has paused the enqueuing of this queue, so its `jobs` were not created. `pause` describes by whom, since
    when and why. After the queue was resumed, `await app.enqueue(error.jobs)` sends them."""

    def __init__(self, queue: str, pause: QueuePause, jobs: Sequence[Job[Any]] = ()) -> None:
        self.queue, self.pause, self.jobs = queue, pause, list(jobs)
        super().__init__(
            f"queue {queue!r} takes no jobs: enqueuing is paused{pause.origin}. "
            f"Send the jobs again (app.enqueue(error.jobs)) after `fennelq queue resume {queue}`"
        )

    def concerning(self, jobs: Sequence[Job[Any]]) -> QueuePaused:
        """The same error about other jobs."""
        return QueuePaused(self.queue, self.pause, jobs)


class QueueFull(FennelqError):
    """So many jobs wait in this queue that it takes no more: its `jobs` were not created. With `when_full="wait"`, the
    queue has accepted no job of the call for `enqueue_timeout`. `waiting` is how many jobs waited at the last attempt,
    and `max_waiting` the bound.

    `await app.enqueue(error.jobs)` sends them again. The other jobs of the same call were sent."""

    def __init__(self, queue: str, waiting: int, max_waiting: int, jobs: Sequence[Job[Any]] = ()) -> None:
        self.queue, self.waiting, self.max_waiting, self.jobs = queue, waiting, max_waiting, list(jobs)
        count = "1 job was" if len(self.jobs) == 1 else f"{len(self.jobs)} jobs were"
        super().__init__(
            f"queue {queue!r} is full: {waiting} jobs wait, and max_waiting is {max_waiting}. {count} not sent: "
            "send again when the workers have caught up (app.enqueue(error.jobs)), start more workers, or, if the "
            f"queue is paused, resume it (`fennelq queue resume {queue}`)"
        )

    def concerning(self, jobs: Sequence[Job[Any]]) -> QueueFull:
        """The same error about other jobs."""
        return QueueFull(self.queue, self.waiting, self.max_waiting, jobs)


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
        if error_type == "Dropped":  # by fennelq: the types of other errors are those of exceptions
            when = f"after {count}" if tries else "before it ran"
            super().__init__(f"job {job_id} was dropped {when}: {message}")
        else:
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
