"""The profile of an executor: which code ran for which task, and how often it was found running.

It is read leniently. An executor of another version may report other facts, and any client of Redis can write them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

_MOST_TEXT = 500


class ProfiledCall(NamedTuple):
    """One call of a stack."""

    function: str
    """Its name."""
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


class ProfiledStack(NamedTuple):
    """Calls that were found together."""

    task: str
    """The task that they serve, or the part of the executor."""
    value: int
    """In how many samples they were found; in a profile of memory, how many bytes they keep."""
    calls: Sequence[ProfiledCall]
    """The innermost last."""
    own: ProfiledCall | None
    """The innermost call in the package of the task."""
    serves: bool = True
    """Whether it serves a task. Otherwise it is a part of the executor, or a thread of a library."""


class ProfiledTask(NamedTuple):
    """A task, and what it costs."""

    task: str
    value: int
    share: float
    """Of all, from 0 to 1."""
    lines: Sequence[tuple[ProfiledCall, int]]
    """The lines of its package that cost most, with their values, the most expensive first."""


class ExecutorProfile(NamedTuple):
    """What an executor did for some seconds."""

    executor: str
    version: str | None
    memory: bool
    """Whether the values are bytes that are kept. Otherwise they are samples, 100 a second of each busy thread."""
    seconds: float
    samples: int
    """How often all stacks were looked at."""
    idle: int
    """In how many of them the event loop waited."""
    stacks: Sequence[ProfiledStack]
    left_out: int
    """The samples or bytes of stacks that did not fit into the answer."""
    jobs: Mapping[str, int]
    """The jobs that were found running most often, with the number of samples."""
    elsewhere: Sequence[str] = ()
    """Tasks of the app that run in processes of their own (`isolation="process"`). These processes are not profiled."""

    @classmethod
    def of(cls, executor: str, report: Mapping[str, Any]) -> ExecutorProfile:
        """The profile in the report of an executor."""
        tasks = [str(task)[:_MOST_TEXT] for task in _list(report, "tasks")]
        calls = [_call(place) for place in _list(report, "places")]
        parts = _list(report, "parts")
        read = (_stack(one, tasks, calls, parts) for one in _list(report, "stacks"))
        version, jobs = report.get("version"), report.get("jobs")
        counted: dict[Any, Any] = cast("dict[Any, Any]", jobs) if isinstance(jobs, dict) else {}  # type: ignore[redundant-cast]
        return cls(
            executor,
            version[:_MOST_TEXT] if isinstance(version, str) else None,
            report.get("memory") is True,
            _number(report, "seconds"),
            int(_number(report, "samples")),
            int(_number(report, "idle")),
            sorted(filter(None, read), key=lambda stack: -stack.value),
            int(_number(report, "left_out")),
            {str(job)[:_MOST_TEXT]: number for job, number in counted.items() if _is_index(number)},
            [str(task)[:_MOST_TEXT] for task in _list(report, "elsewhere")],
        )

    @property
    def total(self) -> int:
        """The values of all stacks together."""
        return sum(stack.value for stack in self.stacks)

    @property
    def tasks(self) -> Sequence[ProfiledTask]:
        """The tasks by their values, the most expensive first, and after them the other parts of the process. A thread
        of a library is counted also while it waits, so it may have a high value and cost nothing."""
        values: Counter[str] = Counter()
        parts: set[str] = set()
        lines: dict[str, Counter[ProfiledCall]] = {}
        for stack in self.stacks:
            values[stack.task] += stack.value
            if not stack.serves:
                parts.add(stack.task)
            if stack.own is not None:
                lines.setdefault(stack.task, Counter())[stack.own] += stack.value
        total = self.total or 1
        return [
            ProfiledTask(task, value, value / total, lines.get(task, Counter()).most_common())
            for task, value in sorted(values.items(), key=lambda one: (one[0] in parts, -one[1]))
        ]

    def is_elsewhere(self, task: str) -> bool:
        """Whether a task, by its whole name or that of its function, runs where nothing is profiled."""
        return any(task in (name, name.rpartition(":")[2]) for name in self.elsewhere)

    def of_task(self, task: str) -> ExecutorProfile:
        """The part of it that is about one task: by its whole name, or by that of its function."""
        return self._replace(
            stacks=[stack for stack in self.stacks if task in (stack.task, stack.task.rpartition(":")[2])]
        )


def _call(place: Any) -> ProfiledCall:
    found = _as_list(place)
    if len(found) >= 3 and _is_index(found[2]):
        return ProfiledCall(str(found[0])[:_MOST_TEXT], str(found[1])[:_MOST_TEXT], found[2])
    return ProfiledCall("?", "?", 0)


def _stack(given: Any, tasks: list[str], calls: list[ProfiledCall], parts: list[Any]) -> ProfiledStack | None:
    found = _as_list(given)
    if len(found) < 4 or not all(map(_is_index, found[:2])):
        return None
    task, value, own, places = found[:4]
    named = [calls[int(index)] for index in _as_list(places) if _is_index(index) and index < len(calls)]
    innermost = named[int(own)] if _is_index(own) and own < len(named) else None
    name = tasks[int(task)] if task < len(tasks) else "?"
    return ProfiledStack(name, value, named, innermost, task not in parts)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else []  # pyright: ignore[reportUnknownArgumentType]


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _list(report: Mapping[str, Any], name: str) -> list[Any]:
    return _as_list(report.get(name))


def _number(report: Mapping[str, Any], name: str) -> float:
    value = report.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
