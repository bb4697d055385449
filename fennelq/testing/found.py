"""Looks into Redis for an app under test: which jobs have not ended, what the queues have counted. And removes its
keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from fennelq import clock as time
from fennelq.broker import verbs
from fennelq.broker.diagnosis import diagnose
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import LANES, QUARANTINE, AppKeys, clock_key, keys_of, parse_key, queue_keys
from fennelq.broker.verb import Command, Step, Word, text
from fennelq.model.gates import RATE, gates_in, line_of
from fennelq.model.job import JobInfo, Status, split_id
from fennelq.testing.clock import now
from fennelq.testing.sent import bound

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.task import AnyTask

A = TypeVar("A")

_PAGE = 1000
_MOST_NAMED = 20
_RECORD = "j:"


class Found:
    """What an app under test has in Redis. It blocks for a round trip, which a test can afford."""

    def __init__(self, app: App) -> None:
        self._app, self._namespace = app, app.namespace

    def keys(self) -> list[str]:
        """The names of all keys of the app, sorted."""
        found: set[str] = set()
        cursor = "0"
        while True:
            words: list[Word] = ["SCAN", cursor, "MATCH", keys_of(self._namespace), "COUNT", _PAGE]
            cursor, keys = self._ask(Command(words, _scanned))
            found.update(keys)
            if cursor == "0":
                return sorted(found)

    def queues(self) -> list[str]:
        """The queues of its tasks, and all that it has used."""
        known = self._ask(verbs.queues.known_queues(self._namespace))
        own = {task.queue for task in self._app.tasks.values()}
        return sorted({*known, *own, self._app.settings.default_queue})

    def unended(self) -> list[JobInfo]:
        """The jobs that have not ended, the oldest first."""
        names = [parse_key(key) for key in self.keys() if parse_key(key).rest.startswith(_RECORD)]
        ids = [(name.queue or "", name.rest.removeprefix(_RECORD)) for name in names]
        jobs = self._each(verbs.jobs.record(queue_keys(self._namespace, queue), key) for queue, key in ids)
        left = [job for job in jobs if job is not None and not job.status.ended]
        return sorted(left, key=lambda job: (job.enqueued_at or time.from_ms(0), job.id))

    def status(self, job_id: str) -> Status:
        """The status of a job."""
        queue, key = split_id(job_id)
        return self._ask(verbs.jobs.status(queue_keys(self._namespace, queue), key))

    def due_ms(self, job: JobInfo) -> int | None:
        """When a job is due that waits for its time, by the clock of the test."""
        if job.place not in ("sched", "retry"):
            return None
        queue, key = split_id(job.id)
        return self._ask(verbs.jobs.due(queue_keys(self._namespace, queue), job.place, key))

    def counted(self) -> Counter[str]:
        """The counters of all queues together, by their letters."""
        total = Counter[str]()
        for stats in self._each(verbs.queues.stats(queue_keys(self._namespace, q)) for q in self.queues()):
            total.update(stats)
        return total

    def quarantined(self) -> bool:
        """Whether jobs wait in quarantine, where an executor runs one at a time. Jobs of a paused queue cannot run."""
        queues = self.queues()
        keys = (queue_keys(self._namespace, queue) for queue in queues)
        lengths = self._each([verbs.queues.length(one, QUARANTINE) for one in keys])
        return any(
            length and not self.is_paused(queue) for queue, length in zip(queues, lengths, strict=True)
        )

    def ready(self) -> int:
        """How many jobs are in the lanes of queues that are not paused."""
        keys = [queue_keys(self._namespace, queue) for queue in self.queues() if not self.is_paused(queue)]
        return sum(self._each([verbs.queues.length(one, lane) for one in keys for lane in LANES.values()]))

    def is_paused(self, queue: str) -> bool:
        """Whether executors start no jobs of this queue."""
        pause = self._ask(verbs.queues.paused(queue_keys(self._namespace, queue)))
        return pause is not None and pause.consuming

    def has_schedules(self) -> bool:
        """Whether recurring jobs may be due."""
        known = Command(["EXISTS", AppKeys(self._namespace)["cron:due"]], int)
        return bool(self._app.declared.schedules) or bool(self._ask(known))

    def bring_forward(self, job_id: str) -> None:
        """Make a job due that waits for its time, or in a line for a rate."""
        queue, key = split_id(job_id)
        keys = queue_keys(self._namespace, queue)
        for place in ("sched", "retry"):
            self._ask(Command(["ZADD", keys[place], "XX", 1, key], int))
        for gate in gates_in(self._ask(verbs.lines.gates(keys, key))):
            if gate.kind == RATE:
                self._ask(Command(["DEL", keys.rate(gate.id)], int))
                self._ask(Command(["ZADD", keys["turn"], "XX", 1, gate.id], int))

    def before(self, job_id: str) -> int | None:
        """How many jobs are before it in its line; None when it is in no line."""
        queue, key = split_id(job_id)
        keys = queue_keys(self._namespace, queue)
        job = self._ask(verbs.jobs.record(keys, key))
        if job is None or job.place != "line":
            return None
        line = line_of(self._ask(verbs.lines.gates(keys, key)), verbs.queues.lane_of(job.priority))
        return self._ask(verbs.lines.before(keys, line, key))

    def remove_keys(self) -> None:
        """Remove every key of the app."""
        for page in pages([*self.keys(), clock_key(self._namespace)], _PAGE):
            self._ask(Command(["UNLINK", *page], int))

    # Words about jobs

    def named(self, jobs: Sequence[JobInfo]) -> str:
        """These jobs, a line for each."""
        lines = [f"  {self._line(job)}" for job in jobs[:_MOST_NAMED]]
        more = len(jobs) - len(lines)
        return "\n".join([*lines, f"  and {more} more"] if more > 0 else lines)

    def _line(self, job: JobInfo) -> str:
        due = self.due_ms(job)
        wait = "" if due is None else f", due in {timedelta(seconds=ceil(max(0, due - self._now()) / 1000))}"
        failed = f"; last error: {job.error.error_type}: {job.error.message}" if job.error else ""
        return (
            f"{job.id} {job.task}{_arguments(self._app.tasks.get(job.task), job)} {job.status}{wait}{failed}"
        )

    def _now(self) -> int:
        return self._ask(now(self._namespace))

    def _ask(self, step: Step[A]) -> A:
        return self._each([step])[0]

    def _each(self, steps: Iterable[Step[A]]) -> list[A]:
        asked = list(steps)
        try:
            return self._app.blocking.send_all(asked) if asked else []
        except Exception as error:
            raise diagnose(self._app.address, error).error() from error


def _scanned(reply: Any) -> tuple[str, list[str]]:
    return text(reply[0]), [text(key) for key in reply[1]]


def _arguments(task: AnyTask | None, job: JobInfo) -> str:
    values = bound(task, job.arguments) if task is not None else None
    if values is None:
        return f" {text(job.arguments)[:100]}"
    return f"({', '.join(f'{name}={value!r}'[:60] for name, value in values.items())})"
