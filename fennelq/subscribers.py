"""The functions that an app calls with its events: plain ones at once, async ones from a bounded queue.

A subscriber changes nothing about a job: what it raises is logged, and an async one that is too slow loses events,
which are counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

from fennelq import clock
from fennelq.errors import ConfigurationError
from fennelq.loops import executing, running_loop
from fennelq.middleware import is_async, name_of, takes
from fennelq.model.events import EVENTS, AnyEvent, JobSent
from fennelq.model.outcome import failure_of
from fennelq.wording import a_kind_of

if TYPE_CHECKING:
    from fennelq.log import Logger

MOST_WAITING: Final = 1000
"""Events that wait for one async subscriber."""
_QUIET_FOR: Final = 60.0
_FAILED: Final = "failed"
LEAVING: Final = 1.0
"""Seconds that an async subscriber gets for the events that wait when its loop is about to end."""

E = TypeVar("E", bound=AnyEvent)
T = TypeVar("T")
Subscriber = Callable[[Any], object]


class EventDecorator(Protocol[E]):
    """The type of `app.on(…)`: it returns the function as it is."""

    def __call__(self, subscriber: Callable[[E], T], /) -> Callable[[E], T]: ...


class Feed(Protocol):
    """An executor, which tells events."""

    def hear(self, kind: type[AnyEvent]) -> None:
        """Tell events of this kind from now on: the first subscriber to them has come."""


class Subscribers:
    """The subscribers of an app, by the kind of event."""

    def __init__(self) -> None:
        self._of: dict[type[AnyEvent], list[_Plain | _Queued]] = {kind: [] for kind in EVENTS}
        self._feeds: WeakSet[Feed] = WeakSet()
        self.to_sent = self._of[JobSent]
        """The client looks at this list for every job, and makes no event while it is empty."""

    def add(self, kind: type[AnyEvent], subscriber: Subscriber) -> None:
        """Call this with every event of this kind."""
        self._of[kind].append(_Queued(subscriber) if is_async(subscriber) else _Plain(subscriber))
        for feed in list(self._feeds):
            feed.hear(kind)

    def attach(self, feed: Feed) -> None:
        """Let a feed know which kinds of events have subscribers, now and later."""
        self._feeds.add(feed)
        for kind, subscribers in self._of.items():
            if subscribers:
                feed.hear(kind)

    def tell(self, event: AnyEvent) -> None:
        """Call the subscribers of this event. What one raises is logged, and the others are still called."""
        for subscriber in self._of[type(event)]:
            try:
                subscriber.receive(event)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt | SystemExit) and not executing:
                    # In a program this is most likely a signal that has arrived during the call. An executor receives
                    # signals on its loop, and nothing that a subscriber raises may end the part that tells the event.
                    raise
                subscriber.failed(event, error)

    async def drain(self) -> None:
        """Let the async subscribers of the running loop receive the events that wait, for a second at most."""
        loop = asyncio.get_running_loop()
        mailboxes = [
            subscriber.mailbox(loop)
            for subscribers in self._of.values()
            for subscriber in subscribers
            if isinstance(subscriber, _Queued)
        ]
        if tasks := [task for mailbox in mailboxes if (task := mailbox.emptied()) is not None]:
            await asyncio.wait(tasks, timeout=LEAVING)
        for mailbox in mailboxes:
            mailbox.give_up()
        for subscribers in self._of.values():
            for subscriber in subscribers:
                subscriber.report_rest()


class _Reports:
    """Logs the trouble of one subscriber: each kind once a minute, with the number of times since."""

    def __init__(self, subscriber: Subscriber) -> None:
        self.function = subscriber
        self._times: dict[str, int] = {}
        self._last: dict[str, float] = {}

    def failed(self, event: AnyEvent, error: BaseException) -> None:
        """Log that the subscriber has raised this."""
        if times := self._due(_FAILED):
            failure = failure_of(error)
            _logger = _logger_of_events()
            _logger.warning(
                "subscriber_failed",
                subscriber=name_of(self.function),
                to=type(event).__name__,
                times=times,
                error=f"{failure.error_type}: {failure.message}"[:500],
                traceback=failure.traceback,
            )

    def dropped(self, why: str) -> None:
        """Count an event that the subscriber does not receive, and log the number."""
        if times := self._due(why):
            self._report_dropped(why, times)

    def report_rest(self) -> None:
        """Log the number of dropped events that were not logged yet: the executor ends, or the app is closed."""
        for why, times in self._times.items():
            if times and why != _FAILED:
                self._times[why] = 0
                self._report_dropped(why, times)

    def _report_dropped(self, why: str, times: int) -> None:
        _logger = _logger_of_events()
        _logger.warning("events_dropped", subscriber=name_of(self.function), times=times, why=why)

    def _due(self, what: str) -> int:
        """How often this has happened since it was last logged; 0 when that was less than a minute ago."""
        times = self._times[what] = self._times.get(what, 0) + 1
        now = clock.monotonic()
        if self._last.get(what, -_QUIET_FOR) + _QUIET_FOR > now:
            return 0
        self._times[what], self._last[what] = 0, now
        return times


def _logger_of_events() -> Logger:
    from fennelq import log  # imported here, because most programs never log this

    return log.get("fennelq.events")


class _Plain(_Reports):
    """A plain function: it is called at once, on the thread where the event happens."""

    def receive(self, event: AnyEvent) -> None:
        """Call it."""
        self.function(event)


class _Queued(_Reports):
    """An async function. It is called with one event after another, by a task of the loop where they happen, so that a
    slow one delays no job and no other subscriber."""

    def __init__(self, subscriber: Subscriber) -> None:
        super().__init__(subscriber)
        self._mailboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = WeakKeyDictionary()

    def receive(self, event: AnyEvent) -> None:
        """Call it soon."""
        loop = running_loop()
        if loop is None:
            self.dropped("no event loop runs where the event happens: subscribe a plain def as well")
        else:
            self.mailbox(loop).put(event)

    def mailbox(self, loop: asyncio.AbstractEventLoop) -> _Mailbox:
        """The events that wait on this loop."""
        mailbox = self._mailboxes.get(loop)
        if mailbox is None:
            mailbox = self._mailboxes[loop] = _Mailbox(self)
        return mailbox


class _Mailbox:
    """The events that wait for an async subscriber on one loop. Its task lives only while there are some."""

    def __init__(self, subscriber: _Queued) -> None:
        self._subscriber = subscriber
        self._waiting: deque[AnyEvent] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, event: AnyEvent) -> None:
        """Add an event. A full mailbox does not take it."""
        if len(self._waiting) >= MOST_WAITING:
            self._subscriber.dropped(f"it is too slow: {MOST_WAITING:,} events wait for it")
        else:
            self._waiting.append(event)
        self.emptied()

    def emptied(self) -> asyncio.Task[None] | None:
        """The task that empties the mailbox; None while nothing waits. Other code may have cancelled the one before, as
        a job does that cancels all tasks."""
        if self._task is None or self._task.done():
            name = f"subscriber {name_of(self._subscriber.function)}"
            self._task = asyncio.create_task(self._empty(), name=name) if self._waiting else None
        return self._task

    def give_up(self) -> None:
        """Drop what still waits: the loop ends."""
        if self._task is not None:
            self._task.cancel()
        for _ in range(len(self._waiting)):
            self._waiting.popleft()
            self._subscriber.dropped("its loop has ended")

    async def _empty(self) -> None:
        try:
            await self._deliver()
        finally:
            # A task refers to its loop, which would keep the mailbox and the loop alive for ever.
            self._task = None

    async def _deliver(self) -> None:
        function = cast("Callable[[AnyEvent], Awaitable[object]]", self._subscriber.function)
        while self._waiting:
            event = self._waiting.popleft()
            try:
                await function(event)
            except BaseException as error:
                if _is_over(error):
                    raise
                self._subscriber.failed(event, error)


def _is_over(error: BaseException) -> bool:
    """Whether the task that calls a subscriber ends, as opposed to a subscriber that raises such an error itself."""
    if isinstance(error, GeneratorExit):
        return running_loop() is None
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def event_given(where: str, given: object) -> type[AnyEvent]:
    """The kind of event; raises ConfigurationError for anything else."""
    for kind in EVENTS:
        if given is kind:
            return kind
    known = [kind.__name__ for kind in EVENTS]
    name = given.__name__ if isinstance(given, type) else given if isinstance(given, str) else ""
    what = repr(given[:60]) if isinstance(given, str) else name or a_kind_of(given)
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean the class {near[0]}?" if near else f"known: {', '.join(known)}"
    raise ConfigurationError(f"{where} takes an event, and {what} is not one; {hint}")


def subscriber_given(where: str, given: object) -> Subscriber:
    """The subscriber; raises ConfigurationError for anything that cannot be called with an event."""
    if not takes(given, 1):
        raise ConfigurationError(
            f"{where} takes a function of the event, not {name_of(given)}: write def note(event): … "
            "or async def note(event): …"
        )
    return cast("Subscriber", given)
