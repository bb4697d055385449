"""Who competes, and the command line that starts its worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

from benchmarks.loops import LoopName

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Crew:
    """The worker a sample wants."""

    processes: int = 1
    concurrency: int = 32
    queues: Sequence[str] = ()
    """Empty: the worker's own choice."""
    lanes: Sequence[str] = ()
    """Empty: all."""


ONE_PROCESS = Crew()


@dataclass(frozen=True)
class Fleet:
    """Executors, many in a process."""

    executors: int
    queues: Sequence[str] = ("default",)
    in_a_process: int = 256
    slots: int = 1
    watched: bool = True
    """With the watchdogs of the executors: see `benchmarks.fleet`."""

    @property
    def processes(self) -> int:
        return ceil(self.executors / self.in_a_process)


@dataclass(frozen=True)
class Contestant:
    name: str
    adapter: str
    """The module that offers ``open_client``."""
    command: Callable[[Crew, str, LoopName], list[str]]
    """Crew, server URL and loop to the worker's arguments, after the interpreter."""
    environment: Callable[[str, LoopName], Mapping[str, str]] = lambda url, loop: {}
    python: str = sys.executable
    most_jobs: int | None = None
    """How many jobs a sample may ask of it; slow libraries would take minutes otherwise."""
    has_queues: bool = False
    """Its worker has an option for the queues to serve."""
    requirements: Sequence[str] = field(default=())
    """What pip installs for it; empty when this environment has it."""

    @property
    def is_peer(self) -> bool:
        return bool(self.requirements)

    def jobs(self, wanted: int) -> int:
        return min(wanted, self.most_jobs or wanted)


def _fennelq_command(crew: Crew, url: str, loop: LoopName) -> list[str]:
    queues = ["-q", ",".join(crew.queues)] if crew.queues else []
    lanes = ["--priority", ",".join(crew.lanes)] if crew.lanes else []
    size = ["-p", str(crew.processes), "-c", str(crew.concurrency)]
    return ["-m", "fennelq", "worker", "-A", "benchmarks.jobs:app", *size, *queues, *lanes]


def _fennelq_environment(url: str, loop: LoopName) -> dict[str, str]:
    settings = {"FENNELQ_REDIS_URL": url, "FENNELQ_LOG_LEVEL": "warning"}
    return (
        settings
        if loop == "uvloop"
        else {**settings, "PYTHONPATH": str(ROOT / "benchmarks" / "without_uvloop")}
    )


def _floor_command(crew: Crew, url: str, loop: LoopName) -> list[str]:
    size = ["--processes", str(crew.processes), "--concurrency", str(crew.concurrency)]
    return ["-m", "benchmarks.floor", "--url", url, "--loop", loop, *size]


FENNELQ = Contestant(
    "fennelq", "benchmarks.fennelq_side", _fennelq_command, _fennelq_environment, has_queues=True
)
FLOOR = Contestant("floor", "benchmarks.floor", _floor_command)
