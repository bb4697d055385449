"""What a job's record can hold. Scripts write `F.place`; the loader puts the letter in its place."""

from __future__ import annotations

from typing import Final, NamedTuple

from fennelq.model.job import Status


class Field(NamedTuple):
    """A field of a record."""

    name: str
    letter: str
    """One letter each, because every job pays for them."""
    meaning: str


FIELDS: Final = (
    Field("task", "t", "task"),
    Field("arguments", "a", "arguments, JSON; emptied by success"),
    Field("options", "o", "options of this call, JSON"),
    Field(
        "status",
        "s",
        "status: Q or absent sent, L scheduled, X executing, R retry, S N success, D dead, K cancelled",
    ),
    Field("place", "p", "place: where the job is; once ended, the token that settled it"),
    Field("settled_by", "T", "token of the run that was settled last, where `p` says something else"),
    Field("lane", "m", "the job's own lane, once it has left it, when that is not the normal one"),
    Field("tries", "n", "failed tries"),
    Field("created", "c", "created, server ms"),
    Field(
        "ended",
        "z",
        "ended, server ms; empty before, when somebody waits, or a key or a history ends with the record",
    ),
    Field("run", "w", "who runs it, since when (server ms), starts so far (the fence); of the latest start"),
    Field("failure", "x", "last failure, JSON"),
    Field("reason", "y", "reason of the end"),
    Field("idempotency", "k", "idempotency key: = with the record, ~ with its own window"),
    Field("expires", "E", "expires, server ms"),
    Field("max_deliveries", "M", "deliveries allowed, when not the app's setting"),
    Field("nonce", "u", "nonce of the call, with a client-given id"),
    Field("digest", "h", "digest of the arguments, with a client-given id"),
    Field("replays", "R", "replays"),
    Field(
        "kept_at_least", "L", "least milliseconds the record is kept, of a job handed over from another slot"
    ),
    Field("history", "H", "set when the job has a history"),
    Field(
        "blank_starts",
        "b",
        "starts that began nothing: the worker's code was too old, or the job was handed back before its handler",
    ),
    Field("too_old_since", "U", "first taken by a worker whose code is too old for it, server ms"),
    Field(
        "too_old_because",
        "Y",
        "why that worker, or the latest like it, could not run it; after how many starts",
    ),
    Field("strandings", "l", "times the job was stranded"),
    Field("watchers", "W", "channels of the processes that wait for the end, the latest 64"),
    Field("version", "v", "wire version, when it is not 1"),
)

LETTERS: Final = {field.name: field.letter for field in FIELDS}
MEANINGS: Final = {field.letter: field.meaning for field in FIELDS}

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
"""What the letters in the field `status` mean."""
