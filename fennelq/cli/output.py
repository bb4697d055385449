"""What commands print: tables for people, tab-separated lines for pipes, JSON for programs.

Texts out of Redis are shown with their control characters escaped: the message of an error must not
be able to drive the terminal of an operator.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import orjson
import typer

from fennelq.dlq import DeadLetter
from fennelq.model.job import Event, JobInfo
from fennelq.queues import Progress
from fennelq.streams import clean

_GAP = "  "


def say(sentence: str) -> None:
    """A sentence for people: on stderr, out of the way of what is piped. The exit code says the same to a program, so
    a stderr that cannot be written to must not change it."""
    with suppress(OSError, ValueError):
        print(clean(sentence), file=sys.stderr, flush=True)


def line(text: str) -> None:
    """One line of the answer."""
    print(clean(text))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on a terminal; in a pipe one line per row, separated by tabs and without a heading."""
    cells = [[cell(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for row in cells:
            print("\t".join(row))
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    room = shutil.get_terminal_size().columns
    numeric = [bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(columns))]
    print(_bold(_aligned([column.upper() for column in columns], widths, numeric)[:room]))
    for row in cells:
        print(_aligned(row, widths, numeric)[:room])


def facts(said: Mapping[str, object]) -> None:
    """Name and value, one below the other; what is None or empty is left out."""
    told = {name: cell(value) for name, value in said.items() if value not in (None, "", {}, ())}
    if not sys.stdout.isatty():
        for name, value in told.items():
            print(f"{name}\t{value}")
        return
    width = max(map(len, told), default=0)
    for name, value in told.items():
        print(f"{_bold(name.ljust(width))}{_GAP}{value}")


def document(value: object) -> None:
    """A value as JSON, on several lines."""
    print(orjson.dumps(value, default=_plain, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode())


def record(value: object) -> str:
    """A value as JSON on one line."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


@contextmanager
def progress(title: str, total: int, *, quiet: bool = False) -> Generator[Progress | None]:
    """A bar for long work, on a terminal only."""
    if quiet or not total or not sys.stderr.isatty():
        yield None
        return
    with typer.progressbar(length=total, label=title, file=sys.stderr) as bar:
        done = 0

        def tell(now: int) -> None:
            nonlocal done
            bar.update(now - done)
            done = now

        yield tell


def cell(value: object) -> str:
    """A value in a table."""
    if value is None:
        return ""
    return clean(moment(value) if isinstance(value, datetime) else str(value))


def lines(text: str) -> str:
    """A text of several lines, clean."""
    return "\n".join(map(clean, text.splitlines()))


def moment(value: datetime) -> str:
    """Local time on a terminal, UTC in a pipe."""
    if sys.stdout.isatty():
        return f"{value.astimezone():%Y-%m-%d %H:%M:%S}"
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def counted(number: int, what: str) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def of_job(job: JobInfo) -> dict[str, Any]:
    """A job as JSON values."""
    said = asdict(job)
    said["error"] = job.error._asdict() if job.error else None
    said["arguments"] = call_of(job.arguments)
    return said


def of_event(event: Event) -> dict[str, Any]:
    """A line of a job's history as JSON values."""
    return {name: None if value is None else _plain(value) for name, value in event._asdict().items()}


def of_letter(letter: DeadLetter) -> dict[str, Any]:
    """A dead job as JSON values, with all that is known of it."""
    said: dict[str, Any] = {
        name: getattr(letter, name)
        for name in ("id", "queue", "task", "error_type", "message", "reason", "died_at")
    }
    if letter.info is None:
        return said
    info = of_job(letter.info)
    more = ("enqueued_at", "started_at", "priority", "replays", "key", "headers", "arguments")
    return {
        **said,
        "tries": letter.tries,
        "traceback": letter.traceback,
        **{name: info[name] for name in more},
    }


def call_of(arguments: bytes) -> object:
    """The arguments of a call, `[[…],{…}]`; a text when they cannot be read, None when they are not kept."""
    if not arguments:
        return None
    try:
        return orjson.loads(arguments)
    except ValueError:
        return arguments.decode("utf-8", "backslashreplace")


def text_of(arguments: bytes) -> str:
    """The arguments of a call as they were written."""
    return arguments.decode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def _aligned(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    pairs = zip(row, widths, numeric, strict=True)
    return _GAP.join(
        text.rjust(width) if right else text.ljust(width) for text, width, right in pairs
    ).rstrip()


def _bold(text: str) -> str:
    return text if os.environ.get("NO_COLOR") else f"\x1b[1m{text}\x1b[0m"
