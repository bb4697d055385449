"""Nothing a test starts outlives the test process, not even when that process is killed with SIGKILL.

A guardian is a small process beside the test process, in a session of its own. It holds the reading end of a
pipe and learns from it what to clean up. When the pipe closes, or its parent is no longer its parent, the
test process is gone, however it went: the guardian kills the process groups and removes the directories it
still knows.

Linux's parent-death signal would need no second process, but it fires when the *thread* that forked ends: too
early for a server started from a pool thread. It has to be armed between fork and exec, and macOS has none.

The guardian runs this file as a script without site-packages: only the standard library may be imported here.
"""

from __future__ import annotations

import atexit
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path


class Guardian:
    """The test process's side: names what has to go when the test process does."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        atexit.register(self._dismiss)

    def kill_later(self, group: int) -> None:
        """Kill this process group when the test process ends, unless it is forgotten first."""
        self._send(f"+kill {group}")

    def forget_group(self, group: int) -> None:
        """The group is gone: its number may soon be that of another."""
        self._send(f"-kill {group}")

    def remove_later(self, directory: Path) -> None:
        """Remove this directory when the test process ends, unless it is forgotten first."""
        self._send(f"+remove {directory}")

    def forget_directory(self, directory: Path) -> None:
        """The directory is gone, or the guardian must not remove it any more."""
        self._send(f"-remove {directory}")

    def _send(self, order: str) -> None:
        # One write below PIPE_BUF: orders of several threads never mix.
        os.write(self._pipe.fileno(), order.encode() + b"\n")

    def _dismiss(self) -> None:
        self._pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)


@cache
def guardian() -> Guardian:
    """The one guardian of this process, started when something first needs guarding."""
    return Guardian()


# From here on: the guardian's own side.


def stand_guard(parent: int) -> None:
    duties: dict[str, None] = {}
    for order in orders_until_death_of(parent):
        sign, duty = order[0], order[1:]
        if sign == "+":
            duties[duty] = None
        else:
            duties.pop(duty, None)
    for duty in duties:
        if duty.startswith("kill "):
            signal_group(int(duty.removeprefix("kill ")), signal.SIGKILL)
    for duty in duties:
        if duty.startswith("remove "):
            remove(Path(duty.removeprefix("remove ")))


def orders_until_death_of(parent: int) -> Iterator[str]:
    """Every order the parent wrote, also the last ones; ends when the parent is gone.

    A forked child of the parent may keep the pipe open after it: so the parent's number is looked at as well.
    """
    unread = b""
    while True:
        orphaned = os.getppid() != parent
        ready, _, _ = select.select([0], [], [], 0 if orphaned else 0.25)
        if ready:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *orders, unread = (unread + chunk).split(b"\n")
            yield from (order.decode() for order in orders)
        elif orphaned:
            return


def remove(directory: Path) -> None:
    """Remove it, though what was killed a moment ago may still have added a file to it while we looked."""
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.05)


def signal_group(group: int, number: int) -> bool:
    """True if the group had a member to signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS raises the latter for a group of zombies
        return False
    return True


if __name__ == "__main__":
    stand_guard(int(sys.argv[1]))
