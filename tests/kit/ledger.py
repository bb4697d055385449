"""What really ran, written down by the jobs themselves and not by the system under test.

Each row is one `os.write` to a file opened with O_APPEND: whole rows of many processes in one file, and what
was written before a `kill -9` stays written, whatever becomes of Redis.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

LEDGER_VARIABLE = "TEST_LEDGER"

Kind = Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class Row:
    """One run of one job began or came to its end."""

    kind: Kind
    job_id: str
    token: str
    pid: int
    at: float
    """Seconds of the monotonic clock: comparable between the processes of one machine."""
    note: str


class Ledger:
    """A file that any number of processes write to and the test reads."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def inherited(cls) -> Ledger:
        """The ledger of the test that started this process, handed down by its `environment`."""
        return cls(os.environ[LEDGER_VARIABLE])

    @property
    def environment(self) -> Mapping[str, str]:
        """To be added to the environment of a child process that writes to this ledger."""
        return {LEDGER_VARIABLE: str(self.path)}

    def start(self, job_id: str, token: str = "", note: str = "") -> None:
        """A run of the job begins; `token` distinguishes the runs of one job (stream and entry, or fence)."""
        self._write("start", job_id, token, note)

    def end(self, job_id: str, token: str = "", note: str = "") -> None:
        """The run came to the end of its handler."""
        self._write("end", job_id, token, note)

    def read(self) -> list[Row]:
        """All rows in the order they were written; empty when no process wrote."""
        return list(self._rows())

    def starts(self) -> Counter[str]:
        """How often each job was started."""
        return Counter(row.job_id for row in self._rows() if row.kind == "start")

    def ends(self) -> Counter[str]:
        """How often each job ran to the end."""
        return Counter(row.job_id for row in self._rows() if row.kind == "end")

    def _write(self, kind: Kind, job_id: str, token: str, note: str) -> None:
        fields = [kind, job_id, token, os.getpid(), time.monotonic(), note]
        # The newline in front fences off a row that a kill tore at a page boundary: it spoils only itself.
        os.write(self._file, b"\n" + json.dumps(fields).encode() + b"\n")

    @cached_property
    def _file(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _rows(self) -> Iterator[Row]:
        if not self.path.exists():
            return
        with self.path.open("rb") as lines:
            for line in lines:
                if (row := parse(line)) is not None:
                    yield row


def parse(line: bytes) -> Row | None:
    """The row in this line; None for a blank line or one that was torn."""
    if not line.endswith(b"]\n"):
        return None
    try:
        fields = cast("tuple[Kind, str, str, int, float, str]", json.loads(line))
        return Row(*fields)
    except (ValueError, TypeError):
        return None
