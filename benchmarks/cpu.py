"""CPU time of other processes, in seconds, finer than the kernel's 10 ms ticks where the system allows it."""

from __future__ import annotations

import time

import psutil

_SCHEDULER_CLOCK = 2  # CPUCLOCK_SCHED: nanoseconds of all threads, ended ones included


def process_seconds(pid: int) -> float:
    """User and system time of one process; of a server, what INFO calls used_cpu_user + used_cpu_sys."""
    try:
        return time.clock_gettime(
            (~pid << 3) | _SCHEDULER_CLOCK
        )  # Linux: what clock_getcpuclockid(3) returns
    except (OSError, OverflowError):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system


def tree_seconds(pid: int) -> float:
    """The same for a process and all its living descendants."""
    root = psutil.Process(pid)
    return sum(process_seconds(process.pid) for process in (root, *root.children(recursive=True)))
