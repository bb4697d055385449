"""Reads the stacks of this process: of its threads, of its asyncio tasks, and which job each of them serves.

A thread reads them, so that this works while the event loop is blocked. There are no source lines, because reading
files may block, and no values of variables, which may be secret.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import fennelq
from fennelq.app import App
from fennelq.worker.running.held import Held, HeldJobs, calls_of_task

MOST_FRAMES: Final = 50
"""Calls that are kept of a stack: the innermost ones."""
MOST_STACKS: Final = 400
_MOST_BYTES: Final = 200_000
"""Bytes of all stacks together, roughly."""
_MOST_TEXT: Final = 200
_OURS: Final = str(Path(fennelq.__file__).parent)
_OF_LOOPS: Final = frozenset({*sys.stdlib_module_names, "uvloop", "__main__"})


class Stack(NamedTuple):
    """The calls of a thread or a task, the innermost last."""

    kind: str
    """`loop`, `thread` or `task`."""
    name: str
    job: str | None
    """`task (id)` of the job that it serves; None without one."""
    seconds: float | None
    """For how long that job has been running."""
    frames: list[str]


class Stacks(NamedTuple):
    """Stacks, and how many were left out."""

    stacks: list[Stack]
    left_out: int


def place_of(frame: FrameType) -> str:
    """File, line and function of a call."""
    return f"{writable(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def writable(text: str) -> str:
    """A text that UTF-8 can write: the name of a file or a thread may have bytes that it cannot."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The calls of a stack, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def frames_of_threads() -> dict[int, FrameType]:
    """Thread → its innermost call."""
    # Python documents this function in spite of its name. It is the only way to read the stack of another thread.
    return sys._current_frames()  # pyright: ignore[reportPrivateUsage]


def users_place(innermost: FrameType | None, package: str | None) -> str:
    """The innermost call in the code of the user, which is what they can change: a blocking call is most often made
    deep in a library. `package` is the top-level package of the task; without it, it is that of the first call that is
    neither in fennelq nor in the standard library. Without such a call, it is the innermost one."""
    if innermost is None:
        return "unknown"
    calls = list(outwards(innermost))
    if package is None or all(_package_of(frame) != package for frame in calls):
        package = next((_package_of(frame) for frame in reversed(calls) if not _is_of_the_loop(frame)), None)
    found = next(
        (frame for frame in calls if package is not None and _package_of(frame) == package), innermost
    )
    return place_of(found)


def package_of(app: App, held: Held | None) -> str | None:
    """The top-level package of the function that a job runs."""
    task = None if held is None else app.tasks.get(held.delivery.task)
    return None if task is None else str(task.function.__module__).partition(".")[0]


def read(
    held: HeldJobs, loop: asyncio.AbstractEventLoop | None, loop_thread: int | None, now: float
) -> Stacks:
    """The stacks of this process, without the thread that calls this. `now` is the monotonic clock."""
    runs = held.every()
    tasks = list[asyncio.Task[Any]](asyncio.all_tasks(loop)) if loop is not None else []
    of_thread: dict[int | None, Held] = {run.thread: run for run in runs}
    on_loop = held.of_task(asyncio.current_task(loop)) if loop is not None else None
    if on_loop is not None:
        of_thread[loop_thread] = on_loop
    of_threads = _threads(of_thread, loop_thread, now)
    of_tasks = _tasks({id(run.task): run for run in runs if run.task is not None}, tasks, now)
    return _bounded([*of_threads, *of_tasks])


def _threads(runs: dict[int | None, Held], loop_thread: int | None, now: float) -> Iterator[Stack]:
    """The loop first, then the threads of jobs."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    found = [(ident, frame) for ident, frame in frames_of_threads().items() if ident != own]
    for ident, frame in sorted(found, key=lambda pair: (pair[0] != loop_thread, pair[0] not in runs)):
        kind = "loop" if ident == loop_thread else "thread"
        calls = reversed(list(map(place_of, outwards(frame))))
        yield _stack(kind, names.get(ident, f"{ident:#x}"), runs.get(ident), calls, now)


def _tasks(runs: dict[int, Held], tasks: list[asyncio.Task[Any]], now: float) -> Iterator[Stack]:
    """The tasks of jobs first, the one that has been running for longest before the others."""

    def order(task: asyncio.Task[Any]) -> tuple[bool, float]:
        run = runs.get(id(task))
        return run is None, run.begun if run else 0.0

    for task in sorted(tasks, key=order):
        yield _stack("task", task.get_name(), runs.get(id(task)), map(place_of, calls_of_task(task)), now)


def _stack(kind: str, name: str, run: Held | None, frames: Iterable[str], now: float) -> Stack:
    job = None if run is None else f"{run.delivery.task[:_MOST_TEXT]} ({run.delivery.id})"
    seconds = round(now - run.begun, 1) if run is not None and run.begun else None
    every = [frame[-_MOST_TEXT:] for frame in frames]
    if len(every) > MOST_FRAMES:
        every = [f"… {len(every) - MOST_FRAMES:,} outer calls", *every[-MOST_FRAMES:]]
    return Stack(kind, writable(name)[:_MOST_TEXT], job, seconds, every)


def _bounded(stacks: list[Stack]) -> Stacks:
    """As many as fit; jobs come before what serves none."""
    kept: list[Stack] = []
    size = 0
    for stack in sorted(stacks, key=lambda one: (one.kind != "loop", one.job is None)):
        size += 200 + sum(map(len, stack.frames))
        if len(kept) >= MOST_STACKS or size > _MOST_BYTES:
            break
        kept.append(stack)
    return Stacks(kept, len(stacks) - len(kept))


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _is_of_the_loop(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS) or _package_of(frame) in _OF_LOOPS
