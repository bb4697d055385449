"""How many machine instructions the server executes per job, counted by Valgrind's callgrind.

Counts repeat within three percent on every machine, however busy, so they show changes that no clock shows there. They
say nothing about waiting for memory.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.scripts import Gates, Scripts
from benchmarks.server import Server
from fennelq.model.job import Delivery

_JOBS, _LONE = 1600, 200
_SEVERAL_JOBS, _SEVERAL_RUNS = 100, 32
_DUMP_SECONDS = 30.0
_TOTALS: Final = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)
_LIMITS: Final[dict[str, Gates]] = {
    "limit never full": lambda number: "c1000000:roomy",
    "one line of all jobs": lambda number: "c32:line",
    "a line per key": lambda number: f"c1:account/{number % 500}",
}


class Counted:
    """A server under callgrind."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        out = f"--callgrind-out-file={directory}/counts"
        self.server = Server("valkey", directory, under=["valgrind", "-q", "--tool=callgrind", out])
        self._dumps = 0

    def of(self, act: Callable[[], object]) -> int:
        """The instructions that the server executes while this runs."""
        self._control("--zero")
        act()
        self._control("--dump")
        self._dumps += 1
        deadline = time.monotonic() + _DUMP_SECONDS
        while time.monotonic() < deadline:
            self.server.ask("PING")  # a server that sleeps writes no dump
            path = self._directory / f"counts.{self._dumps}"
            if path.exists() and (total := _TOTALS.search(path.read_text())):
                return int(total[1])
            time.sleep(0.02)
        raise RuntimeError(f"callgrind has written no counts within {_DUMP_SECONDS:g} s")

    def _control(self, action: str) -> None:
        subprocess.run(["callgrind_control", action, str(self.server.pid)], check=True, capture_output=True)


def figures() -> Iterator[tuple[str, int]]:
    """What is counted, and the instructions per job or call."""
    yield from _of_recording()
    with _started() as (counted, scripts):
        yield from _of_jobs(counted, scripts)
        yield "fetch that finds nothing", counted.of(lambda: scripts.look(_LONE)) // _LONE
        yield "a job without limits, enqueue to end", counted.of(lambda: _run(scripts, _JOBS)) // _JOBS
        for name, gates in _LIMITS.items():
            _run(scripts, _SEVERAL_RUNS, gates)
            yield f"  {name}", counted.of(partial(_run, scripts, _JOBS, gates)) // _JOBS


@contextmanager
def _started() -> Generator[tuple[Counted, Scripts]]:
    """A new server with an empty queue."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fennelq-instructions-")))
        counted = Counted(directory)
        stack.enter_context(counted.server)
        scripts = Scripts(counted.server.url)
        _run(scripts, _SEVERAL_RUNS)  # loads the scripts
        yield counted, scripts


def _of_jobs(counted: Counted, scripts: Scripts) -> Iterator[tuple[str, int]]:
    yield from _of_calls(counted, scripts, _JOBS, _SEVERAL_JOBS, _SEVERAL_RUNS)
    yield from _of_calls(counted, scripts, _LONE, 1, 1)


def _of_calls(
    counted: Counted, scripts: Scripts, jobs: int, sent: int, taken: int
) -> Iterator[tuple[str, int]]:
    yield f"enqueue, {sent} per call", counted.of(lambda: scripts.enqueue(jobs, per_call=sent)) // jobs
    runs: list[list[Delivery]] = []
    count = counted.of(lambda: runs.extend(scripts.fetch(jobs, per_call=taken)))
    yield f"fetch, {taken} per call", count // jobs
    yield f"finish, {taken} per call", counted.of(lambda: list(map(scripts.finish, runs))) // jobs


def _of_recording() -> Iterator[tuple[str, int]]:
    """The ends while the history is recorded, and what its recorder costs the server.

    On a server of its own, which does the same as the one without a history: a server that has other keys moves another
    share of them to a larger table in the same calls, and that can take more than what is compared."""
    with _started() as (counted, scripts):
        scripts.begin_recording()
        for name, count in _of_jobs(counted, scripts):
            if name.startswith("finish"):
                yield f"{name}, recorded", count
        yield "record", counted.of(lambda: _recorded(scripts)) // (_JOBS + _LONE)


def _recorded(scripts: Scripts) -> None:
    while scripts.record():
        pass


def _run(scripts: Scripts, jobs: int, gates: Gates | None = None) -> None:
    """From enqueue to end."""
    scripts.enqueue(jobs, per_call=_SEVERAL_JOBS, gates=gates)
    for runs in scripts.fetch(jobs, per_call=_SEVERAL_RUNS):
        scripts.finish(runs)


def main() -> int:
    """Print the counts, beside those of an earlier run if asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts to this file as well")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with the counts in this file")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("valgrind is not on PATH: install it (on Debian: apt-get install valgrind)", file=sys.stderr)
        return 2
    before: dict[str, int] = json.loads(arguments.against.read_text()) if arguments.against else {}
    found: dict[str, int] = {}
    print("instructions of the server per job or call")
    for name, count in figures():
        found[name] = count
        share = f"{count / before[name] - 1:+8.1%}" if name in before else ""
        print(f"{name:<40}{count:>12,}{share}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
