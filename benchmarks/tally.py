"""Completions counted in shared memory, so that counting costs no Redis traffic.

The harness creates one small file and maps it; every worker process claims a slot in it when its first job
arrives and counts there. Jobs wait at a gate until the harness opens it: worker start is over by then.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

TALLY_VARIABLE = "BENCH_TALLY"

_SLOTS = 64
_GATE = 0
_FIRST_SLOT = 1
_PID, _DONE, _LAST, _UVLOOP = range(4)
_WIDTH = 4
_BYTES = 8 * (_FIRST_SLOT + _SLOTS * _WIDTH)
_GATE_POLL_SECONDS = 0.002


def _map(path: Path) -> memoryview:
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), _BYTES)).cast("q")


class Tally:
    """The harness's side: sums the slots and holds the key of the gate."""

    def __init__(self, path: Path, *, fresh: bool = True) -> None:
        """With `fresh=False`, reads a tally that another process has made."""
        if fresh:
            path.write_bytes(bytes(_BYTES))
        self.path = path
        self._cells = _map(path)

    @property
    def done(self) -> int:
        return sum(self._cells[slot + _DONE] for slot in self._claimed())

    @property
    def last_ns(self) -> int:
        """When the last job so far ended, by the machine's monotonic clock."""
        return max((self._cells[slot + _LAST] for slot in self._claimed()), default=0)

    @property
    def processes(self) -> int:
        return sum(1 for _ in self._claimed())

    @property
    def on_uvloop(self) -> bool:
        """True when every process that ran a job ran it on uvloop."""
        return self.processes > 0 and all(self._cells[slot + _UVLOOP] for slot in self._claimed())

    def open_gate(self) -> None:
        self._cells[_GATE] = 1

    def close_gate(self) -> None:
        self._cells[_GATE] = 0

    def forget(self) -> None:
        """Empty all slots, for the next worker. No worker may be alive."""
        for cell in range(len(self._cells)):
            self._cells[cell] = 0

    def _claimed(self) -> Iterator[int]:
        for slot in range(_FIRST_SLOT, len(self._cells), _WIDTH):
            if self._cells[slot + _PID]:
                yield slot


class Counter:
    """A worker process's side. One instance per process; a forked child claims a slot of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cells = _map(path)
        self._slot = -1
        self._opening: asyncio.Task[None] | None = None
        os.register_at_fork(after_in_child=self._give_up_slot)

    @property
    def waiting(self) -> bool:
        """True while a job must not go on: the gate is closed, or this process has no slot yet."""
        return self._slot < 0 or not self._cells[_GATE]

    async def admitted(self) -> None:
        """Wait for the gate. One coroutine of the process looks; all that wait go on in the same turn."""
        self._claim()
        if self._opening is None:
            self._opening = asyncio.create_task(self._opened())
        await asyncio.shield(self._opening)

    async def _opened(self) -> None:
        while not self._cells[_GATE]:  # noqa: ASYNC110 - another process opens it, no event can
            await asyncio.sleep(_GATE_POLL_SECONDS)
        self._opening = None

    def admitted_blocking(self) -> None:
        """The same for a job that runs in a thread."""
        self._claim()
        while not self._cells[_GATE]:
            time.sleep(_GATE_POLL_SECONDS)

    def count(self) -> None:
        """One job has ended. Not thread-safe: callers in threads hold a lock."""
        slot = self._slot
        self._cells[slot + _DONE] += 1
        self._cells[slot + _LAST] = time.monotonic_ns()

    def _claim(self) -> None:
        if self._slot >= 0:
            return
        with self._path.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            self._slot = self._free_slot()
            self._cells[self._slot + _PID] = os.getpid()
        self._cells[self._slot + _UVLOOP] = int(_runs_on_uvloop())

    def _free_slot(self) -> int:
        slots = range(_FIRST_SLOT, len(self._cells), _WIDTH)
        return next(slot for slot in slots if not self._cells[slot + _PID])

    def _give_up_slot(self) -> None:
        self._slot = -1


def _runs_on_uvloop() -> bool:
    try:
        return type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    except RuntimeError:
        return False


def open_gate_of(path: Path) -> None:
    """Open the gate from a third process."""
    _map(path)[_GATE] = 1
