"""Sending to queues with a bound: the script that creates the jobs, and further attempts after a queue was full."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.dispatch import by_queues
from fennelq.broker.keys import queue_keys
from fennelq.broker.verb import Verb
from fennelq.errors import QueueFull
from fennelq.model.job import AnyJob
from fennelq.model.wire import AnyWireJob

if TYPE_CHECKING:
    from fennelq.app import App

R = TypeVar("R")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_AT_ONCE = 100
"""The most jobs of one call that try again at a time, per queue: most of a large batch would only be refused again. It
is doubled while all of them get in."""


def creating(app: App, queue: str, jobs: Sequence[AnyWireJob]) -> Verb[list[Any]]:
    """The verb that creates these jobs of one queue, within the bound of the queue."""
    keys, bound = queue_keys(app.namespace, queue), app.bounds.of(queue)
    if bound is None:
        return verbs.jobs.enqueue(keys, jobs)
    if bound.when_full == "drop_oldest":
        return verbs.jobs.displace(keys, jobs, bound.max_waiting, app.lifetimes)
    return verbs.jobs.enqueue(keys, jobs, bound.max_waiting)


def found_full(reply: object) -> bool:
    """Whether this reply about a job means that the job was not created because its queue is full."""
    return isinstance(reply, list) and isinstance(reply[0], int)


def full(app: App, queue: str, waiting: int, jobs: Sequence[AnyJob]) -> QueueFull:
    """The error of jobs for which a queue had no room."""
    bound = app.bounds.of(queue)
    return QueueFull(queue, waiting, bound.max_waiting if bound else waiting, jobs)


class Attempts:
    """The further attempts to send the jobs of one call whose queue was full and is to be waited for.

    They go on as long as jobs of the call get in: it gives up when none did for `enqueue_timeout`."""

    def __init__(self, app: App, jobs: Sequence[AnyWireJob], since: float) -> None:
        self._app, self._jobs = app, jobs
        self.since = since
        """When a job of the call got in last; at first, when the call began."""
        self._longest = _FIRST_PAUSE
        self._tried: Sequence[int] = range(len(jobs))
        self._at_once: dict[str, int] = {}
        self._waiting: dict[str, Any] = {}

    def next(self, replies: Sequence[object]) -> list[int]:
        """The places of the jobs to send again after a pause. Empty when all have their final reply, or when the time
        is over."""
        self._learn_from(replies)
        waiting = [place for place, reply in enumerate(replies) if self._waits(place, reply)]
        if not waiting or clock.monotonic() >= self._deadline:
            return []
        queues = by_queues(waiting, lambda place: self._jobs[place].queue)
        self._tried = [
            place
            for queue, places in queues.items()
            for place in places[: self._at_once.get(queue, _AT_ONCE)]
        ]
        return list(self._tried)

    def pause(self) -> float:
        """The seconds before the next attempt. The last pause ends at the deadline."""
        pause = self._longest * random.uniform(0.5, 1.0)
        self._longest = min(2 * self._longest, _LONGEST_PAUSE)
        return min(pause, max(0.0, self._deadline - clock.monotonic()))

    def final(self, replies: Sequence[R]) -> list[R]:
        """The replies after the last attempt: each refusal says how many jobs waited then."""
        return [
            self._waiting.get(self._jobs[place].queue, reply) if self._waits(place, reply) else reply
            for place, reply in enumerate(replies)
        ]

    @property
    def _deadline(self) -> float:
        return self.since + self._app.settings.enqueue_timeout

    def _learn_from(self, replies: Sequence[object]) -> None:
        """The replies to the last attempt: whether jobs got in, and how many may try next."""
        tried = by_queues(self._tried, lambda place: self._jobs[place].queue)
        for queue, places in tried.items():
            refused = [replies[place] for place in places if found_full(replies[place])]
            if refused:
                self._waiting[queue] = refused[-1]
            got_in = sum(isinstance(replies[place], int | bytes) for place in places)
            if not got_in:
                self._at_once.pop(queue, None)
                continue
            self.since, self._longest = clock.monotonic(), _FIRST_PAUSE
            self._at_once[queue] = max(_AT_ONCE, got_in if refused else 2 * got_in)

    def _waits(self, place: int, reply: object) -> bool:
        if not found_full(reply):
            return False
        bound = self._app.bounds.of(self._jobs[place].queue)
        return bound is not None and bound.when_full == "wait"
