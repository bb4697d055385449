"""The dead, and how to bring them back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack

from fennelq import clock
from fennelq.broker.verb import Verb
from fennelq.broker.verbs import admin, census, inspect, presence
from fennelq.broker.verbs.inspect import DeadJob
from fennelq.broker.verbs.lifecycle import MOST_JOBS
from fennelq.errors import ConfigurationError
from fennelq.model.job import JobInfo, split_id
from fennelq.model.options import epoch_ms, seconds, valid_name
from fennelq.queues import queues_of

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.client import Client
    from fennelq.task import AnyTask

_PAGE = 500
"""Entries per read. Replaying and purging go in pages of MOST_JOBS, because scripts hold the server longer."""
_PLACE = "dlq/"
_AFTER_ALL = "18446744073709551615"

Moment = datetime | timedelta | float
"""A moment that knows its time zone, or how long ago: a timedelta or seconds."""
Progress = Callable[[int], None]
"""Told how many are done, now and then."""


class Filters(TypedDict, total=False):
    """Which dead jobs are meant: those that meet all that is said."""

    queue: str | Sequence[str]
    """Only of this queue, or these. Default: every queue the app has used."""
    task: str | AnyTask
    """`module:function`, or only the function's name."""
    error: str
    """Type of the error, with its module (`shop.errors.CardRefused`) or without."""
    since: Moment
    """Died then or later."""
    until: Moment
    """Died then or earlier."""
    ids: Iterable[str]
    """Only these jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead job, as its dead-letter queue lists it. `message` is cut; `get(id)` tells everything."""

    id: str
    queue: str
    task: str
    error_type: str
    message: str
    reason: str
    died_at: datetime
    entry: str
    """Its place in the queue; a job that dies again gets a new one."""
    tries: int = 0
    """Runs it had. Only `get` knows this and what follows."""
    traceback: str = ""
    info: JobInfo | None = field(default=None, repr=False)
    """The whole record: times, headers, arguments as JSON, replays."""


class ReplayReport(NamedTuple):
    """What became of a replay."""

    replayed: int = 0
    key_taken: int = 0
    """Still dead: another job holds their idempotency key by now."""
    gone: int = 0
    """Nothing left to do: they were replayed or removed by somebody else at the same time."""
    broken: int = 0
    """Still dead: their records cannot be read, so there is nothing to run."""

    def __add__(self, other: object) -> ReplayReport:
        if not isinstance(other, ReplayReport):
            return NotImplemented
        return ReplayReport(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def total(self) -> int:
        """Dead jobs that were looked at."""
        return sum(self)


class Group(NamedTuple):
    """Dead jobs of one kind."""

    task: str
    error_type: str
    count: int


class DeadLetters:
    """The dead-letter queues of an app, one per queue. Everything works in pages, however many there are."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def list(
        self, *, limit: int | None = 100, order: Literal["newest", "oldest"] = "newest", **filters: Unpack[Filters]
    ) -> list[DeadLetter]:
        """The dead jobs that meet the filters, of all queues together; `limit=None` gives every one."""
        newest = order == "newest"
        found: list[DeadLetter] = []
        for search in await self._searches(filters):
            found += [letter async for letter in _taking(limit, _letters(search.pages(newest)))]
        found.sort(key=lambda letter: letter.died_at, reverse=newest)
        return found[:limit]

    async def scan(self, **filters: Unpack[Filters]) -> AsyncIterator[DeadLetter]:
        """Every dead job that meets the filters, queue by queue, the oldest first, read a page at a time."""
        for search in await self._searches(filters):
            async for letter in _letters(search.pages()):
                yield letter

    async def get(self, job_id: str) -> DeadLetter | None:
        """Everything about a dead job; None when it is not dead. Raises ValueError when the text is no id."""
        queue, key = split_id(job_id)
        client = self._app.client
        info = await client.ask(inspect.record(client.keys(queue), key))
        entry = _entry_of(info)
        dead = await client.ask(inspect.dead_entry(client.keys(queue), entry)) if entry else None
        return _detailed(dead, info) if dead and info else None

    async def count(self, **filters: Unpack[Filters]) -> int:
        """How many dead jobs meet the filters."""
        return sum([await search.count() for search in await self._searches(filters)])

    async def groups(self, **filters: Unpack[Filters]) -> list[Group]:
        """How many dead jobs there are by task and error type, the most first."""
        kinds = Counter([(letter.task, letter.error_type) async for letter in self.scan(**filters)])
        return [Group(task, error, count) for (task, error), count in kinds.most_common()]

    async def replay(
        self,
        *,
        limit: int | None = None,
        rate: float | None = None,
        progress: Progress | None = None,
        **filters: Unpack[Filters],
    ) -> ReplayReport:
        """Put dead jobs back, each as the same job with a fresh budget of retries, the oldest first.

        What dies while this runs is left for the next time. Interrupted half-way, and run again, it makes no
        duplicates: a job is either still dead or back. `rate` is the most per second.
        """
        report, pace = ReplayReport(), _Pace(rate)
        for search in await self._searches(filters):
            async for page in search.work(pace.most, limit, lambda: report.total):
                await pace.wait_before(len(page))
                report += await search.replay(page)
                if progress:
                    progress(report.total)
        return report

    async def purge(
        self, *, limit: int | None = None, progress: Progress | None = None, **filters: Unpack[Filters]
    ) -> int:
        """Remove dead jobs for good, with their records and results, the oldest first; answers how many."""
        removed = done = 0
        for search in await self._searches(filters):
            async for page in search.work(MOST_JOBS, limit, lambda: done):
                removed += await search.forget(page)
                done += len(page)
                if progress:
                    progress(done)
        return removed

    async def _searches(self, filters: Filters) -> list[_Search]:
        """One search per queue, bounded by what is dead now: what dies later is not found."""
        client = self._app.client
        now = await client.ask(census.now())
        wanted = _Wanted.of(filters, now)
        ids = None if "ids" not in filters else _by_queue(filters["ids"])
        queues = await self._queues(filters, ids)
        newest = await asyncio.gather(*(client.ask(_newest(client, queue)) for queue in queues))
        return [
            _Search(client, queue, wanted, last[0].entry, None if ids is None else ids[queue])
            for queue, last in zip(queues, newest, strict=True)
            if last
        ]
