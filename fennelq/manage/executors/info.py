"""What is known about an executor: the facts that it has reported, and the stacks that it was asked for.

The facts are read leniently. An executor of another version may report others, and any client of Redis can write them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from fennelq import clock

_WORKING = ("works", "starting", "blocked", "draining", "stopping")


class BlockedLoop(NamedTuple):
    """Code that blocks the event loop of an executor, or has blocked it lately."""

    at: str
    """File, line and function: the innermost call in the code of the task, if there is one."""
    job: str
    """The job that it belongs to, or the part of the executor."""
    seconds: float
    """For how long."""
    ago: float | None
    """Seconds since its end; None while it goes on."""


class LongestRun(NamedTuple):
    """The job that an executor has been running for longest."""

    job: str
    task: str
    seconds: float
    """For how long."""


class ExecutorInfo(NamedTuple):
    """An executor, and the facts that it has reported."""

    name: str
    state: str
    """`starting`, `works`, `blocked` (code blocks its event loop), `draining`, `stopping`, `silent`, or `ended:` and
    how its process ended."""
    facts: Mapping[str, Any]
    """All reported facts, also those of a later version of fennelq."""

    @property
    def alive(self) -> bool:
        """Whether it has reported lately."""
        return self.state in _WORKING

    @property
    def host(self) -> str | None:
        """The name of its machine."""
        return _text(self.facts, "host")

    @property
    def pid(self) -> int | None:
        """The id of its process."""
        return _whole(self.facts, "pid")

    @property
    def version(self) -> str | None:
        """Its version of fennelq."""
        return _text(self.facts, "version")

    @property
    def uptime(self) -> float | None:
        """Seconds from its start to its last report."""
        return _number(self.facts, "uptime")

    @property
    def seen_at(self) -> datetime | None:
        """When it has reported last, by the server's clock."""
        ms = _number(self.facts, "beat_ms")
        try:
            return clock.from_ms(int(ms)) if ms else None
        except (ValueError, OverflowError, OSError):
            return None

    @property
    def running(self) -> int | None:
        """Jobs that run now."""
        return _whole(self.facts, "running")

    @property
    def slots(self) -> int | None:
        """Jobs that it runs at the same time, at most. 0 if it takes none."""
        return _whole(self.facts, "concurrency")

    @property
    def stuck(self) -> int:
        """Runs that go on although they were asked to stop."""
        return _whole(self.facts, "stuck") or 0

    @property
    def unsettled(self) -> int:
        """Outcomes of jobs that are not written to Redis yet."""
        return _whole(self.facts, "unsettled") or 0

    @property
    def queues(self) -> Sequence[str]:
        """The queues that it serves, or twenty of them if it serves all, or all that match a pattern."""
        return [str(queue) for queue in _list(self.facts, "queues")]

    @property
    def rss(self) -> int | None:
        """Bytes of resident memory. None for an earlier version of fennelq."""
        return _whole(self.facts, "rss")

    @property
    def lag(self) -> float | None:
        """The longest delay of its event loop between its last two reports, in seconds. None for an earlier version of
        fennelq."""
        return _number(self.facts, "lag")

    @property
    def blocked(self) -> BlockedLoop | None:
        """The code that blocks its event loop, or has blocked it within the last ten minutes for half a second or
        more."""
        return blocked_of(self.facts)

    @property
    def longest(self) -> LongestRun | None:
        """The job that has been running for longest, if it was running for a second."""
        found = _facts(self.facts, "longest")
        seconds = _number(found, "seconds")
        if seconds is None:
            return None
        return LongestRun(_text(found, "job") or "?", _text(found, "task") or "?", seconds)


class Stack(NamedTuple):
    """The calls in which a thread or an asyncio task is."""

    kind: str
    """`loop` is the thread of the event loop, `thread` another thread, `task` an asyncio task that waits or runs."""
    name: str
    job: str | None
    """The job that it serves, as `task (id)`; None without one."""
    seconds: float | None
    """For how long that job has been running."""
    frames: Sequence[str]
    """File, line and function of each call, the innermost last."""


class ExecutorStacks(NamedTuple):
    """The stacks of one executor, at one moment."""

    executor: str
    version: str | None
    blocked: BlockedLoop | None
    """The code that blocks its event loop, or has blocked it lately."""
    stacks: Sequence[Stack]
    """The event loop, then threads and tasks that serve a job, then the others."""
    left_out: int
    """Further stacks, which did not fit into the answer."""

    @classmethod
    def of(cls, executor: str, answer: Mapping[str, Any]) -> ExecutorStacks:
        """The stacks in the answer of an executor."""
        every = _list(answer, "stacks")
        stacks = [_stack(cast("Mapping[str, Any]", one)) for one in every if isinstance(one, dict)]
        left_out = _whole(answer, "left_out") or 0
        return cls(executor, _text(answer, "version"), blocked_of(answer), stacks, left_out)


def blocked_of(facts: Mapping[str, Any]) -> BlockedLoop | None:
    """What blocks the loop, according to these facts."""
    found = _facts(facts, "blocked")
    seconds = _number(found, "seconds")
    if seconds is None:
        return None
    return BlockedLoop(_text(found, "at") or "?", _text(found, "job") or "?", seconds, _number(found, "ago"))


def _stack(found: Mapping[str, Any]) -> Stack:
    return Stack(
        kind=_text(found, "kind") or "?",
        name=_text(found, "name") or "?",
        job=_text(found, "job"),
        seconds=_number(found, "seconds"),
        frames=[str(frame) for frame in _list(found, "frames")],
    )


def _facts(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value: Any = facts.get(name)
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _list(facts: Mapping[str, Any], name: str) -> list[Any]:
    value: object = facts.get(name)
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def _text(facts: Mapping[str, Any], name: str) -> str | None:
    value = facts.get(name)
    return value if isinstance(value, str) else None


def _number(facts: Mapping[str, Any], name: str) -> float | None:
    value = facts.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(facts: Mapping[str, Any], name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
