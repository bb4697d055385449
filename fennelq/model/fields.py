"""The fields of a job's record. Scripts write `F.place`; the loader inserts the letter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from fennelq.model import progress
from fennelq.model.job import Status
from fennelq.model.options import CARRIED, OPTIONS, moment


class Field(NamedTuple):
    """A field of a record."""

    name: str
    letter: str
    """One letter, because every job stores it."""
    meaning: str
    carried: str = ""
    """The name of the value in a job that is sent; empty for fields that only the server writes."""
    shown: str = ""
    """The attribute of JobInfo that shows the field unchanged; empty when no attribute does."""
    read: Callable[[str], Any] = str
    """Turns the text of the field into the value of that attribute."""


def of_options() -> Iterator[Field]:
    """The options that the server reads: each has a field of its own, and is declared in `OptionArgs` only."""
    for name, option in OPTIONS.items():
        if option.reader == "server":
            yield Field(name, option.letter, option.holds, option.carried, option.shown, option.read)


FIELDS: Final = (
    Field("task", "t", "task", shown="task"),
    Field("arguments", "a", "arguments, JSON; emptied by success"),
    Field("options", "o", "options of this call, JSON", carried="options"),
    Field(
        "status",
        "s",
        "status: Q or absent sent, L scheduled, X executing, R retry, S N success, D dead, K cancelled",
    ),
    Field("place", "p", "place: where the job is; once ended, the token that settled it"),
    Field("settled_by", "T", "token of the run that was settled last, where `p` has another value"),
    Field("lane", "m", "the job's own lane, after it has left this lane, unless it is the normal one"),
    Field("tries", "n", "failed tries"),
    Field("created", "c", "created, server ms", shown="enqueued_at", read=moment),
    Field(
        "ended",
        "z",
        "ended, server ms; empty before, when the end of the job concerns a client, a key, a history or `stop`",
        shown="ended_at",
        read=moment,
    ),
    Field("run", "w", "latest start: executor, time (server ms), starts so far (the fence)"),
    Field("failure", "x", "last failure, JSON"),
    Field("reason", "y", "reason of the end", shown="reason"),
    Field(
        "idempotency",
        "k",
        "idempotency key: = with the record, ~ with its own window, < until the job begins, > until it has ended, "
        "^ while it waits, also for its next try",
        carried="idempotency",
    ),
    Field("latest_call", "r", "id of the latest call that has replaced the first one"),
    Field(
        "due_by",
        "B",
        "when a debounced job is due at the latest, server ms; empty when that has no bound",
        shown="due_by",
        read=moment,
    ),
    *of_options(),
    Field("due", "q", "when it was due, server ms; of a job that was scheduled, once it is in a lane"),
    Field("nonce", "u", "nonce of the call, with a client-given id", carried="nonce"),
    Field("digest", "h", "digest of the arguments, with a client-given id"),
    Field("replays", "R", "replays", shown="replays", read=int),
    Field(
        "kept_at_least",
        "L",
        "least milliseconds the record is kept, of a job handed over from another slot",
        carried="keep_ms",
    ),
    Field("history", "H", "set when the job has a history"),
    Field(
        "blank_starts",
        "b",
        "starts without a handler (the worker's code was too old, or the job was handed back before that began), "
        "and of a job with a key all starts before its replay",
    ),
    Field("too_old_since", "U", "first taken by a worker whose code is too old for it, server ms"),
    Field(
        "too_old_because",
        "Y",
        "number of starts so far, and why the latest worker that was too old could not run it",
    ),
    Field("gates", "g", "gates of its limits, with their numbers", carried="gates"),
    Field("deliveries", "d", "deliveries so far, of a job in a line that had more than one"),
    Field(
        "twin",
        "S",
        "token of a second copy of a running job; once it runs, its executor and start too; - when it is gone",
    ),
    Field("stopping", "C", "why a running job was asked to stop; kept until a replay"),
    Field("strandings", "l", "times the job was stranded"),
    Field("watchers", "W", "channels of the processes that wait for the end, the latest 64"),
    Field("followers", "G", "channels of the processes that follow the progress, the latest 64"),
    Field(
        "progress",
        "P",
        "latest progress, JSON: start of the job (the fence), number of the report, done, total, note",
        shown="progress",
        read=progress.shown,
    ),
    Field("version", "v", "wire version, when it is not 1"),
)

LETTERS: Final = {field.name: field.letter for field in FIELDS}
NAMES: Final = {field.letter: field.name for field in FIELDS}
MEANINGS: Final = {field.letter: field.meaning for field in FIELDS}

SHOWN: Final = tuple(field for field in FIELDS if field.shown)

SENT: Final = {field.carried: field.letter for field in FIELDS if field.carried} | {
    "window_ms": "window",
    "dedupe": "held",
    "duplicate": "duplicate",
    "wait_ms": "wait",
    "max_wait_ms": "max_wait",
}
"""The values that a job carries and that the script of enqueue gets by letter. Longer names are for the script only:
the names of fields have one letter. Priority and due time are not here, because they decide the place of the job."""

KNOWN: Final = frozenset(SENT) | {option.carried for option in CARRIED.values()}
"""Everything that a job can carry, by the names it has in schedules and in the outbox."""

STATUSES: Final = {
    "Q": Status.SENT,
    "L": Status.SCHEDULED,
    "X": Status.EXECUTING,
    "R": Status.RETRY,
    "S": Status.SUCCESS,
    "N": Status.SUCCESS,
    "D": Status.DEAD,
    "K": Status.CANCELLED,
}
"""The meanings of the letters in the field `status`."""
