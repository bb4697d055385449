"""The events inside one executor, as typed facts: one part publishes a fact, and the parts that act on it subscribe.

A fact is delivered at once, on the loop, and is not stored. Metrics and tracing are subscribers as well, so the parts
that publish do not depend on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from fennelq.broker.verbs.runs import Settled
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome
from fennelq.model.questions import Drain
from fennelq.worker.outage import LogThrottle
from fennelq.worker.running.held import Token

F = TypeVar("F")


class JobStarted(NamedTuple):
    """A job has a slot and a task of the loop; its handler begins in the next turn of the loop."""

    delivery: Delivery


class JobEnded(NamedTuple):
    """A run has an outcome, which will be written next. Runs that were stopped or lost have none."""

    delivery: Delivery
    outcome: Outcome
    seconds: float | None
    """How long it ran; None when it still runs although its timeout is over."""


class JobsTaken(NamedTuple):
    """A fetch has taken jobs."""

    queue: str
    deliveries: Sequence[Delivery]
    now_ms: int
    """The server's clock at that moment."""


class RunsEnded(NamedTuple):
    """Runs of this queue have ended, and Redis has accepted their outcomes: each run is in one such fact. There is one
    fact for a batch of runs, because a fact for each run would cost several times as much as counting it."""

    queue: str
    runs: Sequence[Settled]


class JobArrived(NamedTuple):
    """A message has woken this executor: a lane has a new entry."""

    queue: str
    lane: str


class JobDue(NamedTuple):
    """A job becomes due in this many seconds."""

    seconds: float
    queue: str
    announced: bool = False
    """Whether a message has announced it, which only this executor has received."""


class RoutingChanged(NamedTuple):
    """The executor serves other queues from now on."""

    left: frozenset[str]
    """The queues that it does not serve any more."""


class BellConnected(NamedTuple):
    """Messages about these queues arrive from now on. Earlier ones are lost, so look at the queues."""

    queues: list[str]


class SchedulesChanged(NamedTuple):
    """A schedule was changed or removed, in Redis."""


class HandOverWaits(NamedTuple):
    """Jobs wait in an outbox for a courier to take them to their queue."""

    queue: str | None = None
    """The queue that the outbox belongs to; None is the outbox of the app, which has the jobs of schedules."""


class MessagesArrive(NamedTuple):
    """The connection for messages works from now on. Earlier ones are lost, so look at the state in Redis."""


class QueuesDiscovered(NamedTuple):
    """All queues that are known in Redis."""

    names: frozenset[str]


class JobHandedBack(NamedTuple):
    """The executor stops, and this job, whose handler had begun, goes back to its queue."""

    delivery: Delivery


class JobLost(NamedTuple):
    """Another executor has this job now, so this run has no outcome."""

    delivery: Delivery


class ExecutorBegun(NamedTuple):
    """The executor begins to take jobs."""


class ExecutorEnded(NamedTuple):
    """The executor has ended: only subscribers are left to be called."""


class LeasesLost(NamedTuple):
    """These jobs belong to another executor now."""

    tokens: list[Token]


class CancelRequested(NamedTuple):
    """A client has asked to stop the run of a job, which this executor has, or has just had."""

    token: Token
    why: str


class RunOutrun(NamedTuple):
    """The other copy of this job has ended it: stop this run."""

    token: Token


class JobsWaitInLines(NamedTuple):
    """In this queue, jobs wait for limits. Only the executor that sweeps the queue publishes it."""

    queue: str


class RunsDoubled(NamedTuple):
    """The executor has asked for second copies of slow runs."""

    made: int
    refused: int
    """Runs that have ended meanwhile, or have a second copy already."""


class EntriesStranded(NamedTuple):
    """In Redis these entries belong to this executor, but it does not hold their jobs."""

    tokens: list[Token]


class QuestionAsked(NamedTuple):
    """A message on the channel of this executor: a person asks something of it."""

    text: str


class DrainAsked(NamedTuple):
    """A person asks the executor to take no more jobs, finish those that run, and end."""

    how: Drain


class ExecutorEnding(NamedTuple):
    """The executor takes no more jobs."""


class LoopWorksAgain(NamedTuple):
    """The loop was blocked, and the deputy has reported for it."""


class RedisReplies(NamedTuple):
    """A read has got a reply, for the first time or for the first time after an error."""


class StopAsked(NamedTuple):
    """The executor should stop gracefully, so that the supervisor can replace it."""


class ExecutorGivenUp(NamedTuple):
    """The watchdog asks for a successor: the loop of the executor was stalled, or a thread that it needs has died."""


class Bus:
    """Calls the subscribers of a kind of fact in the order in which they subscribed."""

    def __init__(self) -> None:
        self._subscribers: dict[type, list[Callable[[Any], object]]] = {}
        self._log = LogThrottle("a subscriber")
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on, deliver on this loop the facts that threads publish."""
        self._loop = loop

    def subscribe(self, kind: type[F], subscriber: Callable[[F], object]) -> None:
        """Call this with every fact of this kind. It is called on the loop and must not block."""
        self.subscribers(kind).append(subscriber)

    def subscribers(self, kind: type[F]) -> list[Callable[[F], object]]:
        """The list of subscribers of this kind of fact, to which later ones are added. A part that publishes a fact for
        every job tests this list first, and does not create a fact that has no subscribers."""
        return self._subscribers.setdefault(kind, [])

    def publish(self, fact: object) -> None:
        """Call the subscribers of this kind of fact. An error of one is logged, and the others are still called."""
        for subscriber in self._subscribers.get(type(fact), ()):
            try:
                subscriber(fact)
            # Also SystemExit and CancelledError: they would end the part that publishes, such as the consumer. A
            # cancellation of that part itself cannot arrive here, because a subscriber does not await.
            except BaseException as error:
                self._log.warn(error, fact=type(fact).__name__)

    def publish_from_thread(self, fact: object) -> None:
        """Publish in the next turn of the loop. Raises RuntimeError when the loop is closed."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.publish, fact)
