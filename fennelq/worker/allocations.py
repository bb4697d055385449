"""Measures the memory that code has allocated while it was watched, and has not freed, with the task whose code it is.

Python's tracemalloc slows everything down that allocates, so it runs only as long as a person asks for.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from fennelq.app import App
from fennelq.worker.sampling import Counted, Place
from fennelq.worker.stacks import writable

_FRAMES: Final = 16
"""Calls that are kept of each allocation: they are most of what the watch costs."""
_MOST_STACKS: Final = 1_000
_MOST_TEXT: Final = 200
NO_TASK: Final = "no task"


class Allocations:
    """Watches the allocations of this process."""

    def __init__(self, app: App) -> None:
        self._tasks = [
            (name, _Range.of(task.function.__code__))
            for name, task in app.tasks.items()
            if isinstance(task.function, FunctionType)
        ]
        self._modules: dict[str, list[ModuleType]] = {}
        self._named: dict[str, list[_Range]] = {}
        self._known: dict[tuple[str, int], tuple[Place, str]] = {}
        self._was_tracing = tracemalloc.is_tracing()
        """Other code watches as well: then the watch is not ended here, and what it has seen before is not counted."""
        self.left_out = 0
        """Bytes of the stacks that did not fit."""

    def start(self) -> None:
        """Begin to watch."""
        if not self._was_tracing:
            tracemalloc.start(_FRAMES)
        self._before = tracemalloc.take_snapshot() if self._was_tracing else None

    def end(self) -> None:
        """Stop watching."""
        if not self._was_tracing:
            tracemalloc.stop()

    def counted(self) -> list[Counted]:
        """The bytes of each stack that are still allocated, the most first."""
        snapshot, self._modules = tracemalloc.take_snapshot(), _modules()
        self.end()  # the watch would slow down the rest
        if self._before is None:
            found = [(one.size, one.traceback) for one in snapshot.statistics("traceback")]
        else:
            differences = snapshot.compare_to(self._before, "traceback")
            found = [(one.size_diff, one.traceback) for one in differences if one.size_diff > 0]
        found.sort(key=lambda one: one[0], reverse=True)
        self.left_out = sum(size for size, _ in found[_MOST_STACKS:])
        return [self._stack(size, trace) for size, trace in found[:_MOST_STACKS]]

    def _stack(self, size: int, trace: tracemalloc.Traceback) -> Counted:
        known = [self._known_at(one) for one in trace]
        places = [place for place, _ in known]
        task = next((task for _, task in reversed(known) if task), NO_TASK)
        return Counted(task, size, places, len(places) - 1, task != NO_TASK)

    def _known_at(self, frame: tracemalloc.Frame) -> tuple[Place, str]:
        """The place of a line, and the task in whose function it is."""
        line = frame.filename, frame.lineno
        if line not in self._known:
            place = Place(self._function_at(frame), writable(frame.filename)[-_MOST_TEXT:], frame.lineno)
            self._known[line] = place, self._task_at(frame)
        return self._known[line]

    def _task_at(self, frame: tracemalloc.Frame) -> str:
        """The task in whose function this line is; empty without one."""
        return next((name for name, where in self._tasks if where.contains(frame)), "")

    def _function_at(self, frame: tracemalloc.Frame) -> str:
        """The function in which this line is: tracemalloc knows only files and lines. Source lines are not read,
        because they may contain secrets."""
        if frame.filename not in self._named:
            own = [where for _, where in self._tasks if where.file == frame.filename]
            modules = self._modules.get(frame.filename, ())
            self._named[frame.filename] = [
                *own,
                *(_Range.of(code) for module in modules for code in _codes_in(module)),
            ]
        inside = [one for one in self._named[frame.filename] if one.contains(frame)]
        # Of nested functions, the innermost has the fewest lines.
        return min(inside, key=lambda one: one.last - one.first).name if inside else "<module>"


class _Range(NamedTuple):
    """The lines of a function."""

    name: str
    file: str
    first: int
    last: int

    @classmethod
    def of(cls, code: CodeType) -> _Range:
        """The lines of this code."""
        last = max((line or 0 for *_, line in code.co_lines()), default=0)
        return cls(code.co_qualname[-_MOST_TEXT:], code.co_filename, code.co_firstlineno, last)

    def contains(self, frame: tracemalloc.Frame) -> bool:
        """Whether the line of this frame is one of them."""
        return self.file == frame.filename and self.first <= frame.lineno <= self.last


def _modules() -> dict[str, list[ModuleType]]:
    """File → the modules that were loaded from it."""
    found: dict[str, list[ModuleType]] = {}
    modules: list[Any] = list(sys.modules.values())  # code may put other things there
    for module in modules:
        if isinstance(module, ModuleType):
            found.setdefault(str(module.__dict__.get("__file__")), []).append(module)
    return found


def _codes_in(module: ModuleType) -> Iterator[CodeType]:
    """The functions of a module, also the methods of its classes. It reads no attribute of the values: that may call
    code of a user."""
    values: list[Any] = list(module.__dict__.values())
    values += [one for value in values if isinstance(value, type) for one in list(vars(value).values())]
    for value in values:
        if isinstance(value, FunctionType):
            yield from _with_inner(value.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """This code and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
