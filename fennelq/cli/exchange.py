"""Files of dead jobs: what `dlq export` writes and `dlq import` reads."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final, TextIO

from fennelq.cli import output
from fennelq.cli.exits import Exit, Problem
from fennelq.manage.dead.importing import LONGEST_LINE
from fennelq.manage.documents import of_import

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.cli.steps import Steps
    from fennelq.manage.dead.importing import ImportReport
    from fennelq.manage.dead.search import Filters

_AT_ONCE: Final = 100


def _write_line(line: dict[str, Any], file: TextIO) -> None:
    """Write a line. Every character that could control a terminal is escaped, and whole numbers keep all digits."""
    print(json.dumps(line), file=file)


async def export(
    app: App, meant: Filters, limit: int | None, file: TextIO, steps: Steps, *, secrets: bool
) -> int:
    """Write the lines of these dead jobs; returns how many."""
    written = hidden = 0
    async for line in app.dlq.export(secrets=secrets, **meant):
        _write_line(line, file)
        written += 1
        hidden += bool(line.get("redacted"))
        if written % _AT_ONCE == 0 or written == limit:
            steps(written)
        if written == limit:
            break
    if hidden:
        output.note(
            f"{output.counted(hidden, 'dead job')} with hidden secrets cannot be imported: --with-secrets includes them"
        )
    return written


@contextmanager
def lines_of(path: str) -> Generator[tuple[Iterator[bytes], int]]:
    """The lines of a file, or of stdin (`-`), and their number."""
    try:
        with _opened(path) as file:
            number = sum(1 for _ in _lines(file))
            file.seek(0)
            yield _lines(file), number
    except OSError as problem:
        raise Problem(f"{path} cannot be read: {problem.strerror}", Exit.FAILED) from None


def print_import(report: ImportReport, *, dead: bool, as_json: bool) -> None:
    """Print what an import has done."""
    if report.problems:
        output.note(f"fennelq: {report.problems}")
    if as_json:
        output.document(of_import(report))
        return
    output.answer(report.imported, "job", words_of_import(report, dead=dead))


def words_of_import(report: ImportReport, *, dead: bool) -> str:
    """What an import has done, and why it left lines out."""
    also = {
        "skipped, because jobs with their ids exist already": report.known,
        "not sent, because another job holds their idempotency key": report.key_taken,
        "line cannot be imported" if report.refused == 1 else "lines cannot be imported": report.refused,
    }
    words = [f"{output.number(count)} {what}" for what, count in also.items() if count]
    done = "put back as dead" if dead else "sent"
    return "; ".join([done, *words])


def _opened(path: str) -> IO[bytes]:
    if "\0" in path:
        raise Problem(f"{path!r} is not the name of a file", Exit.USAGE)
    if path != "-":
        return Path(path).open("rb")
    # The lines are counted first, and checked before the first job is sent: a pipe can be read only once.
    file = TemporaryFile()  # noqa: SIM115  # the caller closes it
    shutil.copyfileobj(sys.stdin.buffer, file)
    file.seek(0)
    return file


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines. Of one that is too long to be read, only the beginning, which is too long as well."""
    while line := file.readline(LONGEST_LINE + 2):
        yield line
        while not line.endswith(b"\n") and (line := file.readline(LONGEST_LINE)):
            pass
