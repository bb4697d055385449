"""The values that describe a job: as it is sent, as it is delivered, and as it is known from its record.

The fields of a record are declared in `fields.py`, and the options of a call in `options.py`.

The three that are used on the hot path are named tuples: immutable like frozen dataclasses, and five times cheaper to
create.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeVar, Unpack

from fennelq import clock
from fennelq.errors import InvalidJobId, UsageError
from fennelq.model.progress import Progress

if TYPE_CHECKING:
    from fennelq.model.options import OptionArgs

R_co = TypeVar("R_co", covariant=True)
"""The return type of a task. It is covariant, so that jobs and results of different tasks fit into one list."""

Priority = Literal["high", "normal", "low"]
"""A lane of a queue. Workers take jobs from `high` first."""

Dedupe = Literal["until_start", "until_done", "throttle", "debounce", "latest"]
"""How long a job holds its key: until it starts or is done, for `ttl`, or as debounce and latest need it."""

_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}:[A-Za-z0-9_.-]{1,128}")
"""Two names that `valid_name` allows in Redis keys, joined by a colon."""

_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [first + second for first in _DIGITS for second in _DIGITS]
_RANDOM_BYTES, _RANDOM_LETTERS = 9, 11
_WITHOUT_SIGNS = bytes.maketrans(b"+/", b"09")
"""Base 64 without its two signs: a double click in a terminal marks the whole key."""


class Status(StrEnum):
    """The states of a job: the same words in code, logs and CLI."""

    UNKNOWN = "UNKNOWN"
    SCHEDULED = "SCHEDULED"
    SENT = "SENT"
    EXECUTING = "EXECUTING"
    RETRY = "RETRY"
    SUCCESS = "SUCCESS"
    DEAD = "DEAD"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """True when the job does not change any more by itself."""
        return self in (Status.SUCCESS, Status.DEAD, Status.CANCELLED)


_HOW_MADE = "a Job is made by task.job(…): write await app.enqueue([task.job(…)])"


class Job(Generic[R_co]):
    """One call, described and encoded, to be sent: `await app.enqueue([job])`. It never changes.

    `task.job(…)`, `task.jobs(…)` and `app.describe(…)` make jobs; the class itself cannot be called.
    """

    __slots__ = ("_key", "_queue", "_task")

    _queue: str
    _key: str
    _task: str

    def __init__(self, *_: object, **__: object) -> None:
        # Without a docstring, so that the reference page shows no constructor.
        raise UsageError(_HOW_MADE)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # The only subclass is internal to fennelq: errors name it `Job`, the name that users know.
        cls.__name__ = "Job"

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self.task}>"

    @property
    def queue(self) -> str:
        """The queue in which it will wait."""
        return self._queue

    @property
    def key(self) -> str:
        """The part of its id after the colon."""
        return self._key

    @property
    def task(self) -> str:
        """Name of the task."""
        return self._task

    @property
    def priority(self) -> Priority:
        """Its lane of the queue."""
        raise NotImplementedError

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that this call carries; those that `@app.task(headers=…)` declares are added by the worker."""
        raise NotImplementedError

    @property
    def id(self) -> str:
        """`queue:key`: the id contains the queue of the job."""
        return f"{self._queue}:{self._key}"

    def with_headers(self, headers: Mapping[str, str], /) -> Self:
        """The same job, with these headers too; one that it has under the same name is replaced."""
        raise NotImplementedError

    def with_options(self, **options: Unpack[OptionArgs]) -> Self:
        """The same job, with other options. A job keeps its id: `queue` and `job_id` are refused."""
        raise NotImplementedError


class Delivery(NamedTuple):
    """A job that an executor has taken. (queue, lane, entry) is the token with which it may finish the job."""

    queue: str
    lane: str
    entry: str
    key: str
    task: str
    args: bytes
    options: bytes
    tries: int
    """Failed tries so far."""
    deliveries: int
    """Deliveries so far that count against `max_deliveries`, this one included."""
    fence: int
    """Grows with every start of the job: a fencing token for the user's own database."""
    enqueued_ms: int
    due_ms: int = 0
    """When it could have started: when it was sent, or its delay was over."""

    @property
    def id(self) -> str:
        """`queue:key`."""
        return f"{self.queue}:{self.key}"

    @property
    def token(self) -> tuple[str, str, str]:
        """The token that only the current owner has."""
        return (self.queue, self.lane, self.entry)


class JobFailure(NamedTuple):
    """Why a job's last try failed."""

    error_type: str
    message: str
    traceback: str = ""
    reason: str = "failed"
    fingerprint: str = ""
    """8 hexadecimal digits: failures of one cause have the same. Empty when no worker has made one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """Everything known about a job at one moment."""

    id: str
    task: str
    queue: str
    status: Status
    priority: Priority = "normal"
    tries: int = 0
    """Runs that count as tries: those that failed, and the one that is running or has succeeded. A run that was
    snoozed, handed back or cancelled does not count."""
    deliveries: int = 0
    place: str | None = None
    owner: str | None = None
    reason: str | None = None
    """Why it is dead or cancelled."""
    stopping: str | None = None
    """Why a client has asked the run to stop. None without such a request, and when the job has ended."""
    waiting_because: str | None = None
    """The problem that must be solved before it can run: no worker serves its queue, or the workers' code is too old
    for it. None otherwise: then it runs, has ended, or only has to wait for its turn."""
    error: JobFailure | None = None
    enqueued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    due_at: datetime | None = None
    expires_at: datetime | None = None
    replays: int = 0
    progress: Progress | None = None
    """The latest progress that the task has reported, in this run or in an earlier one."""
    key: str | None = None
    dedupe: Dedupe | None = None
    """How long it holds its key. None without a key, and while the key is held as long as the record exists."""
    due_by: datetime | None = None
    """When a debounced job is due at the latest; None without a bound."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    arguments: bytes = field(default=b"", repr=False)
    """The encoded call, as JSON; empty once the job has succeeded."""


class Event(NamedTuple):
    """A line of a job's history: a failed try, a worker whose code was too old, a release, a recovery, a replay. The
    history of a job that runs once and succeeds is empty."""

    at: datetime
    what: str
    owner: str | None = None
    """The executor that had the job."""
    begun: datetime | None = None
    """When that run began."""
    more: str | None = None
    """Further facts: the error, how the executor died, why it could not run the job."""


def new_key() -> str:
    """A new job key: nine characters of time and eleven random ones, some 66 bits. Keys sort by time of creation, and
    are unique without coordination. They are short, because Redis stores a key with each record and each result."""
    random = b64encode(os.urandom(_RANDOM_BYTES)).translate(_WITHOUT_SIGNS)[:_RANDOM_LETTERS]
    return _time_in_letters(clock.wall_ms()) + random.decode()


def _time_in_letters(ms: int) -> str:
    """The time in base 32: it sorts like the number, and lasts until the year 3084."""
    pair = _PAIRS
    return f"{pair[ms >> 40]}{pair[ms >> 30 & 1023]}{pair[ms >> 20 & 1023]}{pair[ms >> 10 & 1023]}{pair[ms & 1023]}"[
        1:
    ]


def split_id(job_id: str) -> tuple[str, str]:
    """Queue and key of an id; raises InvalidJobId when the text is not a job id."""
    if not isinstance(job_id, str) or _ID.fullmatch(job_id) is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidJobId(job_id)
    queue, _, key = job_id.partition(":")
    return queue, key


AnyJob = Job[Any]
