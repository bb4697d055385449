"""A row of the history: a job that has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson
from pydantic_core import from_json, to_json

from fennelq import clock
from fennelq.broker.verbs.ends import STATUSES, End, EndedRecord
from fennelq.manage.documents import text_of_call
from fennelq.model.job import Event, JobFailure, JobInfo, Status
from fennelq.model.options import OPTIONS
from fennelq.model.outcome import failure_from_wire
from fennelq.model.runs import Traces
from fennelq.redaction import Redaction, is_object

_LONGEST: Final = 65_536
"""Characters of a message or a traceback that are kept."""
_HEADERS: Final = OPTIONS["headers"].letter
_MOST: Final = (1 << 31) - 1
_LATEST: Final = 100_000_000_000_000
_NO_ARGUMENTS: Final = b"[[],{}]"


class Row(NamedTuple):
    """A row of the table `jobs`. Times are milliseconds since the epoch. All but the first four are None when the
    record was gone before it was read."""

    id: str
    queue: str
    status: str
    ended: int
    task: str | None = None
    created: int | None = None
    due: int | None = None
    started: int | None = None
    tries: int | None = None
    """Failed tries."""
    starts: int | None = None
    executor: str | None = None
    error: str | None = None
    """The type of the error."""
    message: str | None = None
    traceback: str | None = None
    fingerprint: str | None = None
    reason: str | None = None
    key: str | None = None
    args: str | None = None
    """The call as JSON, without its secrets."""
    headers: str | None = None
    """A JSON object."""
    events: str | None = None
    """The lines of the job's history: a JSON array."""

    @property
    def order(self) -> tuple[int, int, int]:
        """Of two ends with one id, the later one has the larger value. A job that got the id when the record of the
        former one had expired was sent later. Otherwise the number of starts decides, and then the time, because a
        clock may be set back."""
        return (self.created or 0, self.starts or 0, self.ended)

    @property
    def run_ms(self) -> int:
        """How long its last run took."""
        return max(0, self.ended - self.started) if self.started else 0

    @property
    def wait_ms(self) -> int:
        """How long it waited, from when it was due to its last start."""
        begin = self.due or self.created
        return max(0, self.started - begin) if self.started and begin else 0

    def info(self) -> JobInfo:
        """The same as the record of the job would show it."""
        status = Status(self.status)
        return JobInfo(
            id=self.id,
            queue=self.queue,
            status=status,
            task=self.task or "",
            tries=(self.tries or 0) + (status is Status.SUCCESS),
            deliveries=self.starts or 0,
            reason=self.reason,
            error=JobFailure(
                self.error,
                self.message or "",
                self.traceback or "",
                self.reason or "failed",
                self.fingerprint or "",
            )
            if self.error
            else None,
            enqueued_at=_moment(self.created),
            started_at=_moment(self.started),
            ended_at=_moment(self.ended),
            key=self.key,
            headers=_object(self.headers),
            arguments=(self.args or "").encode(),
        )

    def traces(self) -> Traces:
        """What its story needs besides."""
        return Traces(self.executor)

    def lines(self) -> list[Event]:
        """The lines of its history."""
        found: list[Event] = []
        for line in _array(self.events):
            with suppress(ValueError, TypeError, OverflowError):
                begun = line.get("begun")
                found.append(
                    Event(
                        clock.from_ms(int(line["at"])),
                        str(line["what"]),
                        line.get("owner"),
                        clock.from_ms(int(begun)) if begun else None,
                        line.get("more"),
                    )
                )
        return found


COLUMNS: Final = Row._fields


def row_of(queue: str, end: End, record: EndedRecord | None, redaction: Redaction) -> Row:
    """The row of a job, without its secrets. Without a record, or with a damaged one, it has only how the job ended."""
    bare = Row(f"{queue}:{end.key}", queue, STATUSES[end.kind], end.at_ms)
    if record is None:
        return bare
    try:
        return _full(bare, record, redaction)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return bare


def _full(bare: Row, record: EndedRecord, redaction: Redaction) -> Row:
    # The job may have been replayed since: then this row is about its death, and the next end replaces it.
    status = STATUSES.get(_text(record.status) or "")
    is_over = status is not None
    owner, started, starts = _run(record.run)
    task, arguments, options = _text(record.task) or "", record.arguments or b"", record.options or b""
    row = Row(
        bare.id,
        bare.queue,
        status or bare.status,
        _time(record.ended) or bare.ended if is_over else bare.ended,
        clean_text(task),
        _time(record.created),
        _time(record.due),
        started,
        tries=_count(record.tries),
        starts=starts,
        executor=owner,
        reason=(clean_text(_text(record.reason)) or None) if is_over else None,
        args=_call(redaction, task, arguments),
        headers=_headers(options, redaction) if options else None,
    )
    if record.failure is None and not record.history and not record.idempotency:
        return row
    hidden = redaction.hiding(task, arguments, options)
    if key := _key(_text(record.idempotency), task):
        row = row._replace(key=clean_text(hidden(key)))
    if record.history:
        row = row._replace(events=_events(record.history, hidden))
    if record.failure is not None and row.status != "SUCCESS":
        failure = failure_from_wire(record.failure)[0]
        row = row._replace(
            error=clean_text(failure.error_type)[:200],
            message=clean_text(hidden(failure.message))[:_LONGEST],
            traceback=clean_text(hidden(failure.traceback))[-_LONGEST:],
            fingerprint=clean_text(failure.fingerprint)[:64] or None,
        )
    return row


def _call(redaction: Redaction, task: str, arguments: bytes) -> str | None:
    if not arguments:
        return None
    return (
        _NO_ARGUMENTS.decode()
        if arguments == _NO_ARGUMENTS
        else text_of_call(redaction.call(task, arguments))
    )


def _headers(options: bytes, redaction: Redaction) -> str | None:
    found: Any = orjson.loads(options).get(_HEADERS)
    return to_json(redaction.headers(found)).decode() if found else None


def _key(idempotency: str | None, task: str) -> str | None:
    if not idempotency:
        return None
    name = idempotency[1:]
    return name.removeprefix(f"{task}:") if name.startswith(f"{task}:") else name.partition(":")[2]


def _run(run: bytes | None) -> tuple[str | None, int | None, int]:
    """The executor of the latest start, its time, and the number of starts."""
    parts = (run or b"").rsplit(b" ", 2)
    if len(parts) != 3:
        return None, None, 0
    return clean_text(_text(parts[0])), _time(parts[1]), _count(parts[2])


def _events(lines: Sequence[bytes], hidden: Callable[[str], str]) -> str:
    """The lines of a job's history. A secret is hidden before the text becomes JSON, where it may be written with
    escapes. A damaged line is left out."""
    found: list[dict[str, Any]] = []
    for line in lines:
        with suppress(ValueError):
            facts: Any = from_json(line)
            if is_object(facts):
                found.append(
                    {name: hidden(one) if isinstance(one, str) else one for name, one in facts.items()}
                )
    return clean_text(to_json(found).decode())


def _time(value: bytes | None) -> int | None:
    """Milliseconds since the epoch that a calendar has; None for others."""
    number = _number(value)
    return number if number is not None and 0 <= number < _LATEST else None


def _count(value: bytes | None) -> int:
    return min(max(0, _number(value) or 0), _MOST)


def _number(value: bytes | None) -> int | None:
    """A number; None for a text that is none."""
    if not value or len(value) > 30:
        return None
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return int(float(value))
    except (ValueError, OverflowError):
        return None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")


def clean_text(text: str | None) -> str:
    """A text as every database takes it: no NUL, and no half of a character."""
    if not text:
        return ""
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else clock.from_ms(ms)


def _object(text: str | None) -> Mapping[str, str]:
    try:
        found: Any = orjson.loads(text) if text else {}
    except ValueError:
        return {}
    return found if is_object(found) else {}


def _array(text: str | None) -> Sequence[dict[str, Any]]:
    try:
        found: Any = orjson.loads(text) if text else []
    except ValueError:
        return []
    return [line for line in found if is_object(line) and "at" in line and "what" in line]
