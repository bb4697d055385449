"""Calls the subscribers of an app with the events of an executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from fennelq.model import events, outcome
from fennelq.model.events import AnyEvent, Ended
from fennelq.model.job import Delivery
from fennelq.model.outcome import failure_from_wire
from fennelq.worker import bus
from fennelq.worker.state import State

_ENDED: Final[Mapping[str, Ended]] = {
    outcome.SUCCESS: "success",
    outcome.SUCCESS_WITHOUT_VALUE: "success",
    outcome.RETRY: "retry",
    outcome.SNOOZE: "snoozed",
    outcome.RATE_LIMITED: "snoozed",
    outcome.DEAD: "dead",
    outcome.CANCELLED: "cancelled",
    outcome.UNKNOWN_TASK: "unknown",
}


class EventFeed:
    """Makes events of the facts on the bus. It listens to a fact only once an event that is made of it has subscribers,
    so that the other parts publish no fact about a plain job."""

    def __init__(self, state: State) -> None:
        self._bus, self._subscribers, self._executor = state.bus, state.app.subscribers, state.name
        self._heard: set[type[AnyEvent]] = set()
        self._subscribers.attach(self)

    def hear(self, kind: type[AnyEvent]) -> None:
        """Pass events of this kind to the subscribers from now on."""
        if kind in _SOURCES and kind not in self._heard:
            self._heard.add(kind)
            fact, event_of = _SOURCES[kind]
            self._bus.subscribe(fact, partial(self._tell, event_of))

    async def end(self) -> None:
        """Let async subscribers receive the events that wait for them."""
        await self._subscribers.drain()

    def _tell(self, event_of: EventOf, fact: Any) -> None:
        event = event_of(fact, self._executor)
        if event is not None:
            self._subscribers.tell(event)


EventOf = Callable[[Any, str], AnyEvent | None]
"""Makes an event of a fact and the name of the executor; None when the fact is none of its kind."""


def _finished(fact: bus.JobEnded, _: str) -> AnyEvent:
    ended = _ENDED[fact.outcome.kind]
    return events.JobFinished(**_job(fact.delivery), outcome=ended, seconds=fact.seconds)


def _retried(fact: bus.JobEnded, _: str) -> AnyEvent | None:
    if fact.outcome.kind != outcome.RETRY:
        return None
    error, _tries = failure_from_wire(fact.outcome.error)
    return events.JobRetried(**_job(fact.delivery), delay=int(fact.outcome.value) / 1000, error=error)


def _died(fact: bus.JobEnded, _: str) -> AnyEvent | None:
    if fact.outcome.kind != outcome.DEAD:
        return None
    error, tries = failure_from_wire(fact.outcome.error)
    job = fact.delivery
    return events.JobDied(id=job.id, task=job.task, queue=job.queue, tries=tries, error=error)


def _job(delivery: Delivery) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "task": delivery.task,
        "queue": delivery.queue,
        "tries": delivery.tries + 1,
    }


_SOURCES: Final[Mapping[type[AnyEvent], tuple[type, EventOf]]] = {
    events.JobStarted: (bus.JobStarted, lambda fact, _: events.JobStarted(**_job(fact.delivery))),
    events.JobFinished: (bus.JobEnded, _finished),
    events.JobRetried: (bus.JobEnded, _retried),
    events.JobDied: (bus.JobEnded, _died),
    events.JobStopped: (bus.JobHandedBack, lambda fact, _: events.JobStopped(**_job(fact.delivery))),
    events.LeaseLost: (bus.JobLost, lambda fact, _: events.LeaseLost(**_job(fact.delivery))),
    events.ExecutorStarted: (bus.ExecutorBegun, lambda _, name: events.ExecutorStarted(executor=name)),
    events.ExecutorStopped: (bus.ExecutorEnded, lambda _, name: events.ExecutorStopped(executor=name)),
}
"""The kinds of events of an executor, with the fact from which each is made. Clients and tickers make JobSent."""
