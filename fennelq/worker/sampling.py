"""Counts the stacks in which this process is found, each with the task that it serves: a profile of its time.

The event loop is counted while it works. A thread that runs the function of a task is counted also while it waits,
because it holds a slot of the executor all the time.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from types import CodeType, FrameType
from typing import Final, NamedTuple

from fennelq.app import App
from fennelq.worker.running.held import Held, HeldJobs
from fennelq.worker.stacks import frames_of_threads, writable

MOST_FRAMES: Final = 100
"""Calls that are kept of a stack: the innermost ones."""
MOST_STACKS: Final = 10_000
"""Different stacks that are kept. Later ones are counted as left out."""
MOST_JOBS: Final = 1_000
LOOP: Final = "event loop, no job"
_MOST_TEXT: Final = 200
_IDLE: Final = frozenset({"selectors", "threading", "queue", "concurrent.futures.thread", "asyncio.runners"})
"""Modules in whose functions a thread waits for work."""
_AROUND_JOBS: Final = ("fennelq.worker.", "fennelq.plugins.", "fennelq.carry", "fennelq.middleware")
_TURN: Final = frozenset({"_run_once", "run_forever", "run_until_complete", "run"})
"""Functions of asyncio that run the callbacks of the loop."""

Call = tuple[int, int]
"""The id of code, and the instruction at which it is. Both are looked up at the end, because a sample must be short:
finding a line takes time, and so does the hash of a code object."""
Calls = tuple[Call, ...]
"""The innermost last."""


class Place(NamedTuple):
    """One call of a stack, as people see it."""

    function: str
    file: str
    line: int


class Counted(NamedTuple):
    """How often one stack was found."""

    task: str
    """The task that it serves, or which part of the executor it is."""
    number: int
    places: list[Place]
    """The innermost last."""
    own: int
    """The index of the innermost place in the code of the user."""
    serves: bool = True
    """Whether it serves a task."""


class _Stack(NamedTuple):
    """What is counted."""

    task: str
    serves: bool
    calls: Calls


class _Code(NamedTuple):
    """Code that was found on a stack. It is kept, so that its id stays its own."""

    code: CodeType
    package: str
    """The top-level package of its module."""
    around: bool
    """Whether it runs jobs, or callbacks of the loop: the calls further out are the same in every stack."""

    @classmethod
    def of(cls, frame: FrameType) -> _Code:
        """The code of this frame."""
        module = str(frame.f_globals.get("__name__"))
        turn = module.startswith("asyncio.") and frame.f_code.co_name in _TURN
        return cls(frame.f_code, module.partition(".")[0], turn or module.startswith(_AROUND_JOBS))


class Samples:
    """Counts the stacks of one executor. One thread at a time may sample."""

    def __init__(
        self, app: App, held: HeldJobs, loop: asyncio.AbstractEventLoop | None, loop_thread: int | None
    ) -> None:
        self._app, self._held, self._loop, self._loop_thread = app, held, loop, loop_thread
        self._stacks: Counter[_Stack] = Counter()
        self._codes: dict[int, _Code] = {}
        self.jobs: Counter[str] = Counter()
        """Job → how often it was found running, for the first thousand jobs."""
        self._before: dict[int, tuple[int, int]] = {}
        """Thread without a job → its innermost frame and instruction at its last sample."""
        self.taken = self.idle = self.left_out = 0
        """Samples; those in which the loop waited; stacks that did not fit."""

    def take(self, also_not: Iterable[int] = (), *, idle_too: bool = True) -> bool:
        """Take one sample, without this thread and those of `also_not`. Without `idle_too`, a sample in which the loop
        waits is not counted, and this returns False."""
        runs, frames = self._held.every(), frames_of_threads()
        on_loop = self._of_loop(runs)
        at_loop = frames.pop(self._loop_thread, None) if self._loop_thread is not None else None
        waits = on_loop is None and at_loop is not None and self._waits(self._loop_thread or 0, at_loop)
        if waits and not idle_too:
            return False
        self.taken += 1
        self.idle += waits
        if at_loop is not None and not waits:
            calls = self._calls(at_loop)
            self._add(_Stack(LOOP, False, calls) if on_loop is None else self._of_job(on_loop, calls))
        of_thread = {run.thread: run for run in runs if run.thread is not None}
        for ident in frames.keys() - {threading.get_ident(), *also_not}:
            self._count(ident, frames[ident], of_thread.get(ident))
        return True

    def counted(self) -> list[Counted]:
        """The stacks, the most frequent first."""
        places = _Places()
        merged: Counter[tuple[str, bool, int, tuple[Place, ...]]] = Counter()
        for stack, number in self._stacks.items():
            found = tuple(places.of(self._codes[code].code, at) for code, at in stack.calls)
            merged[stack.task, stack.serves, self._own(stack), found] += number
        return [
            Counted(task[:_MOST_TEXT], number, list(found), own, serves)
            for (task, serves, own, found), number in merged.most_common()
        ]

    def _own(self, stack: _Stack) -> int:
        """The index of the innermost call in the package of the task; that of the innermost call without one."""
        task = self._app.tasks.get(stack.task)
        package = None if task is None else str(task.function.__module__).partition(".")[0]
        last = len(stack.calls) - 1
        inner = (i for i in range(last, -1, -1) if self._codes[stack.calls[i][0]].package == package)
        return next(inner, last)

    def _of_loop(self, runs: list[Held]) -> Held | None:
        """The job whose code the loop runs at this moment."""
        task = asyncio.current_task(self._loop) if self._loop is not None else None
        return None if task is None else next((run for run in runs if run.task is task), None)

    def _count(self, ident: int, frame: FrameType, run: Held | None) -> None:
        if run is not None:
            self._add(self._of_job(run, self._calls(frame)))
        elif not self._waits(ident, frame):
            name = next((one.name for one in threading.enumerate() if one.ident == ident), "?")
            self._add(_Stack(f"thread {writable(name)}", False, self._calls(frame)))

    def _of_job(self, run: Held, calls: Calls) -> _Stack:
        self._count_job(run.delivery.id)
        return _Stack(run.delivery.task, True, calls)

    def _calls(self, innermost: FrameType) -> Calls:
        """The calls of a stack, without those around a job or a callback of the loop."""
        found: list[Call] = []
        frame: FrameType | None = innermost
        codes = self._codes
        while frame is not None and len(found) < MOST_FRAMES:
            key = id(frame.f_code)
            code = codes.get(key)
            if code is None:
                code = codes[key] = _Code.of(frame)
            if code.around and found:
                break
            found.append((key, frame.f_lasti))
            frame = frame.f_back
        return tuple(reversed(found))

    def _waits(self, ident: int, frame: FrameType) -> bool:
        """Whether a thread without a job waits: in a function that is there for it, or at the same instruction as in
        the sample before."""
        before, now = self._before.get(ident), (id(frame), frame.f_lasti)
        self._before[ident] = now
        return before in (None, now) or frame.f_globals.get("__name__") in _IDLE

    def _add(self, stack: _Stack) -> None:
        if stack in self._stacks or len(self._stacks) < MOST_STACKS:
            self._stacks[stack] += 1
        else:
            self.left_out += 1

    def _count_job(self, job: str) -> None:
        if job in self.jobs or len(self.jobs) < MOST_JOBS:
            self.jobs[job] += 1


class _Places:
    """The places of calls. Files below a folder of `sys.path` are shown without that folder."""

    def __init__(self) -> None:
        self._roots = sorted((f"{root.rstrip('/')}/" for root in sys.path if root), key=len, reverse=True)
        self._files: dict[str, str] = {}
        self._known: dict[tuple[CodeType, int], Place] = {}

    def of(self, code: CodeType, instruction: int) -> Place:
        """The place of an instruction."""
        at = (code, instruction)
        if at not in self._known:
            positions = next(islice(code.co_positions(), max(0, instruction) // 2, None), (None,))
            line = positions[0] or code.co_firstlineno
            self._known[at] = Place(code.co_qualname[-_MOST_TEXT:], self._shown(code.co_filename), line)
        return self._known[at]

    def _shown(self, file: str) -> str:
        if file not in self._files:
            root = next((root for root in self._roots if file.startswith(root)), "")
            self._files[file] = writable(file.removeprefix(root))[-_MOST_TEXT:]
        return self._files[file]
