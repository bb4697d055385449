"""Logs the jobs that this executor cannot run because its code is too old for them, once a minute for each task.

Such a job has an unknown task, or an argument that its task does not accept here. The runner gives it the outcome
`unknown_task`, and `lua/outcome/too_old.lua` makes it due again after half a second to 30 seconds, for a worker with
newer code. It is dead when no worker could run it for `unknown_task_patience`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from fennelq import clock, log
from fennelq.broker.verbs.runs import TooNew
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome, failure_from_wire

_logger = log.get("fennelq.worker")

_QUIET_FOR = 60.0
_FORGOTTEN_AFTER = 90.0
"""Seconds. A job that no worker can run is due again after at most 30 seconds. When an executor has not met it for this
time, another worker has run it."""
_REMEMBERED = 100
_MOST_SHOWN = 10
EVENTS = {
    "unknown_task": "task_unknown",
    "unknown_argument": "argument_unknown",
    "unknown_version": "version_unknown",
}


class _Kind(NamedTuple):
    queue: str
    task: str
    reason: str


class _Memory:
    __slots__ = ("last", "logged", "times", "why")

    def __init__(self) -> None:
        self.why = ""
        self.last = 0.0
        self.logged: float | None = None
        self.times = 0
        """How often this executor has met it since the last line."""


class UnrunnableJobs:
    """Remembers and reports such jobs. `module` is the module that the worker was started with."""

    def __init__(self, tasks: Collection[str], module: str) -> None:
        self._tasks, self._module = tasks, module
        self._kinds: dict[_Kind, _Memory] = {}

    def met(self, delivery: Delivery, outcome: Outcome) -> None:
        """Record a job that was handed back for a worker with newer code."""
        failure, _ = failure_from_wire(outcome.error)
        self._note(delivery.queue, delivery.id, delivery.task, outcome.reason, failure.message)

    def too_new(self, queue: str, jobs: Iterable[TooNew]) -> None:
        """Record jobs that were handed back for a worker with a newer fennelq."""
        for job in jobs:
            self._note(queue, f"{queue}:{job.key}", job.task, "unknown_version", job.problem)

    def _note(self, queue: str, job_id: str, task: str, reason: str, why: str) -> None:
        kind, now = _Kind(queue, task[:200], reason), clock.monotonic()
        memory = self._kinds.pop(kind, None) or _Memory()
        # Inserted anew, so that the dictionary is in the order in which the kinds were last met.
        self._kinds[kind] = memory
        if len(self._kinds) > _REMEMBERED:
            del self._kinds[next(iter(self._kinds))]
        memory.why, memory.last = why, now
        memory.times += 1
        if memory.logged is None or now - memory.logged >= _QUIET_FOR:
            self._warn(kind, memory, job_id)
            memory.logged, memory.times = now, 0

    def facts(self) -> list[dict[str, str]]:
        """The kinds met lately, for the facts that this executor publishes: at most ten, the latest first."""
        oldest = clock.monotonic() - _FORGOTTEN_AFTER
        lately = [(kind, memory) for kind, memory in self._kinds.items() if memory.last >= oldest]
        return [{**kind._asdict(), "why": memory.why} for kind, memory in reversed(lately[-_MOST_SHOWN:])]

    def _warn(self, kind: _Kind, memory: _Memory, job_id: str) -> None:
        _logger.warning(
            EVENTS.get(kind.reason, kind.reason),
            task=kind.task,
            queue=kind.queue,
            job_id=job_id,
            times=memory.times,
            why=memory.why,
            likely=self._likely(kind),
            doing="handed back, for a worker that can run it",
        )

    def _likely(self, kind: _Kind) -> str:
        if kind.reason == "unknown_argument":
            return "the sender's code is newer than this worker's: restart the worker with the new code"
        if kind.reason == "unknown_version":
            return "the sender's fennelq is newer than this worker's"
        module = kind.task.partition(":")[0]
        if any(name.partition(":")[0] == module for name in self._tasks):
            return "the name is misspelt, or the sender's code is newer than this worker's"
        return (
            f"{self._module}, which this worker has imported, does not import {module}, "
            "or the sender's code is newer than this worker's"
        )
