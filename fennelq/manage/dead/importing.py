"""Brings the jobs of an export back: sends them, or restores them as dead jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from fennelq.broker import verbs
from fennelq.broker.dispatch import dispatch, raise_first
from fennelq.broker.keys import LANES, queue_keys
from fennelq.broker.noting import noted
from fennelq.broker.talk import Talk, ask
from fennelq.broker.verb import MOST_JOBS
from fennelq.broker.verbs.dead import Restored
from fennelq.client import refused, sent_with_room
from fennelq.errors import FennelqError, ImportRefused, PayloadTooLarge, UnknownQueue
from fennelq.manage.dead.exporting import RESTORED, VERSION
from fennelq.manage.dead.spool import Spool
from fennelq.manage.queues.queues import OnProgress, queues_of
from fennelq.model.fingerprint import is_fingerprint
from fennelq.model.job import JobFailure, split_id
from fennelq.model.options import read_wire
from fennelq.model.outcome import failure_to_wire
from fennelq.model.result_codec import ANY_RESULT
from fennelq.model.wire import WireJob
from fennelq.room import full

if TYPE_CHECKING:
    from fennelq.app import App

LONGEST_LINE: Final = 64 << 20
"""The most bytes of a line: the arguments and the traceback of a job take much less."""
_NAMED: Final = 10
"""The most lines that an error names."""
_COUNT: Final = r"0|[1-9][0-9]{0,8}"
"""A number that Redis can increment: without leading zeros, and with ASCII digits only."""
_PATTERNS: Final = {
    "lane": "|".join(LANES.values()),
    "tries": _COUNT,
    "created": r"[0-9]{1,15}",
    "run": r"[^\n]{1,300} [0-9]{1,15} [0-9]{1,9}",
    "idempotency": r"[=~<>^][^\s{}]{1,600}",
    "max_deliveries": r"[0-9]{1,18}",
    "gates": r"[a-z][0-9]{0,15}(/[0-9]{1,9})?:\S{1,200}( [a-z][0-9]{0,15}(/[0-9]{1,9})?:\S{1,200}){0,9}",
    "nonce": r"[0-9A-Za-z]{1,64}",
    "digest": r"[0-9a-f]{40}",
    "replays": _COUNT,
    "blank_starts": _COUNT,
    "version": r"[0-9]{1,3}",
}
_TEXTS: Final = {"error_type": 256, "message": 4096, "traceback": 8192, "reason": 500}
"""The facts about a death, and how many characters of them are kept."""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of an import."""

    imported: int = 0
    known: int = 0
    """Skipped, because jobs with their ids exist already."""
    key_taken: int = 0
    """Not sent, because another job holds their idempotency key."""
    refused: int = 0
    """The number of lines that cannot be imported; only with `continue_`, otherwise they are an error."""
    problems: str = ""
    """The first of these lines, and their problems."""

    def __add__(self, other: ImportReport) -> ImportReport:
        return ImportReport(
            self.imported + other.imported,
            self.known + other.known,
            self.key_taken + other.key_taken,
            self.refused + other.refused,
            self.problems or other.problems,
        )

    @property
    def total(self) -> int:
        """All lines with a job that can be imported."""
        return self.imported + self.known + self.key_taken


class Line(NamedTuple):
    """A line of an export, read and checked."""

    id: str
    task: str
    arguments: str
    failure: str
    note: str
    record: Mapping[str, str]

    @property
    def queue(self) -> str:
        """The queue of the job."""
        return split_id(self.id)[0]

    @property
    def key(self) -> str:
        """The part of the id after the colon."""
        return split_id(self.id)[1]

    @property
    def size(self) -> int:
        """The approximate number of bytes of the job on the wire."""
        return self.restored().size

    def restored(self) -> Restored:
        """The line as a dead job."""
        fields: dict[str, str | bytes] = {
            "task": self.task,
            "arguments": self.arguments.encode(),
            **self.record,
        }
        return Restored(self.key, self.failure.encode(), self.note, fields)

    def job(self) -> WireJob[Any]:
        """The line as a job to be sent. It leaves out a key that has its own `ttl=`, as a replay does."""
        record = self.record
        carried: dict[str, Any] = {
            name: record[name] for name in ("options", "gates", "nonce") if name in record
        }
        if "max_deliveries" in record:
            carried["max_deliveries"] = int(record["max_deliveries"])
        if (lane := record.get("lane")) and lane != LANES["normal"]:
            carried["priority"] = next(name for name, stream in LANES.items() if stream == lane)
        held, name = record.get("idempotency", "")[:1], record.get("idempotency", "")[1:]
        if held and held != "~":
            carried |= {"idempotency": name} | ({} if held == "=" else {"dedupe": held})
        return WireJob(self.queue, self.key, self.task, self.arguments.encode(), ANY_RESULT, carried)


class Importing:
    """Checks all lines, and then imports them."""

    def __init__(self, app: App, *, dead: bool, continue_: bool) -> None:
        self._app, self._dead, self._continue = app, dead, continue_
        self._lines = Spool()
        self._problems: list[tuple[int, FennelqError]] = []
        self._refused = 0

    def run(
        self, lines: Iterable[str | bytes | Mapping[str, Any]], progress: OnProgress | None
    ) -> Talk[ImportReport]:
        """Import the lines. Raises ImportRefused when some cannot be imported, unless it may import the others."""
        known = yield from queues_of(self._app)
        for number, text in enumerate(lines, 1):
            self._read(number, text, known)
        problem = ImportRefused(self._problems, self._refused - len(self._problems))
        if self._refused and not self._continue:
            raise problem
        report = ImportReport(refused=self._refused, problems=problem.why if self._refused else "")
        page: list[Line] = []
        for place, facts in enumerate(self._lines, 1):
            page.append(Line(*facts))
            if len(page) == MOST_JOBS or place == self._lines.count:
                report += yield from self._imported(page)
                page = []
                if progress:
                    progress(report.total)
        return report

    def _read(self, number: int, text: str | bytes | Mapping[str, Any], known: set[str]) -> None:
        if isinstance(text, str | bytes) and not text.strip():
            return
        try:
            line = self._line(text, known)
        except FennelqError as error:
            self._refuse(number, error)
            return
        except (ValueError, TypeError) as error:
            self._refuse(number, _unreadable(error))
            return
        try:
            self._lines.add(*line)
        except TypeError as error:  # UTF-8 cannot write one of its texts
            self._refuse(number, _unreadable(error))

    def _refuse(self, number: int, error: FennelqError) -> None:
        self._refused += 1
        if len(self._problems) < _NAMED:
            self._problems.append((number, error))

    def _line(self, text: str | bytes | Mapping[str, Any], known: set[str]) -> Line:
        line = _document(text)
        _check_origin(line, self._app.namespace)
        queue, _ = split_id(line.get("id", ""))
        if queue not in known:
            raise UnknownQueue(queue, known)
        arguments = _arguments(line)
        if len(arguments.encode()) > self._app.settings.max_payload_bytes:
            raise PayloadTooLarge(
                "the arguments", len(arguments.encode()), self._app.settings.max_payload_bytes
            )
        record = _record(line)
        texts = [str(line.get(name, ""))[:most] for name, most in _TEXTS.items()]
        kind, message, traceback, reason = texts
        failure = failure_to_wire(
            JobFailure(kind, message, traceback, reason or "failed", _fingerprint(line)),
            int(record.get("tries", 0)),
        )
        note = f"from an export; died {str(line.get('died_at', ''))[:40]}"
        return Line(line["id"], _task(line), arguments, failure.decode(), note, record)

    def _imported(self, page: Sequence[Line]) -> Talk[ImportReport]:
        if self._dead:
            return (yield from self._restored(page))
        replies = yield from sent_with_room(self._app, [line.job() for line in page])
        report = ImportReport()
        for line, reply in zip(page, replies, strict=True):
            if isinstance(reply, Exception):
                raise reply
            if isinstance(reply, list):
                (why,) = reply
                job = line.job()
                raise (
                    full(self._app, job.queue, why, [job])
                    if isinstance(why, int)
                    else refused(job.queue, why, [job])
                )
            taken = isinstance(reply, bytes) and reply != line.key.encode()
            report += ImportReport(int(reply == 1), int(reply != 1 and not taken), int(taken))
        return report

    def _restored(self, page: Sequence[Line]) -> Talk[ImportReport]:
        def restore(queue: str, some: list[Line]) -> Talk[Sequence[int]]:
            if self._app.noted.is_due(queue):
                yield from noted(self._app.namespace, [queue])
                self._app.noted.done(queue)
            jobs = [line.restored() for line in some]
            keys = queue_keys(self._app.namespace, queue)
            return (yield from ask(verbs.dead.restore(keys, jobs, self._app.lifetimes)))

        replies = yield from dispatch(page, lambda line: line.queue, restore, lambda line: line.size)
        raise_first(replies)
        return ImportReport(replies.count(1), replies.count(0))


def _unreadable(error: Exception) -> FennelqError:
    return FennelqError(f"it cannot be read: {str(error)[:200]}")


def _document(text: str | bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(text, Mapping):
        return text
    if len(text) > LONGEST_LINE:
        raise FennelqError(f"it has more than {LONGEST_LINE:,} bytes")
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        raise FennelqError("it is not JSON") from None
    if not isinstance(line, dict):
        raise FennelqError("it is not a JSON object")
    return cast("dict[str, Any]", line)


def _check_origin(line: Mapping[str, Any], app: str) -> None:
    if line.get("v") != VERSION:
        raise FennelqError(
            f"it is of version {str(line.get('v'))[:20]}, and this fennelq reads version {VERSION}: it is not from "
            "`fennelq dlq export`, or from a later fennelq"
        )
    if line.get("app") != app:
        raise FennelqError(f"it is of app {str(line.get('app'))[:140]!r}, and this app is {app!r}")
    if line.get("redacted"):
        raise FennelqError("its secrets are hidden: export it again with secrets")
    if not isinstance(line.get("record"), dict):
        raise FennelqError("the job was not dead any more when it was exported")


def _arguments(line: Mapping[str, Any]) -> str:
    arguments = line.get("arguments")
    if isinstance(arguments, str):
        return arguments  # those that were no call when they were sent
    match arguments:
        case [list(), dict()]:
            return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
        case _:
            raise FennelqError("its arguments are not a call, which has the form [[…],{…}]")


def _task(line: Mapping[str, Any]) -> str:
    task = line.get("task")
    if not isinstance(task, str) or not task or len(task) > 1000:
        raise FennelqError("it has no name of a task")
    return task


def _fingerprint(line: Mapping[str, Any]) -> str:
    given = line.get("fingerprint")
    return given if isinstance(given, str) and is_fingerprint(given) else ""


def _record(line: Mapping[str, Any]) -> dict[str, str]:
    record = cast("dict[str, Any]", line["record"])
    for name, value in record.items():
        if name not in RESTORED or not isinstance(value, str):
            raise FennelqError(f"its record has an unknown field {name[:40]!r}")
        if name == "options":
            read_wire(value.encode())
        elif not re.fullmatch(_PATTERNS[name], value):
            raise FennelqError(f"field {name!r} of its record cannot be read")
    return record
