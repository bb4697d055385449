"""The dead, and how to bring them back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict, Unpack

from fennelq import clock
from fennelq.broker.verbs import admin, census, inspect
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
"""Entries per read. Replaying and purging go in pages of MOST_JOBS: a script holds the server longer."""
_PLACE = "dlq/"
_LAST_OF_MS = (1 << 64) - 1

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


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What became of a replay."""

    replayed: int = 0
    key_taken: int = 0
    """Still dead: another job holds their idempotency key by now."""
    gone: int = 0
    """Nothing left to do: they were replayed or removed by somebody else at the same time."""
    broken: int = 0
    """Still dead: their records cannot be read, so there is nothing to run."""

    def __add__(self, other: ReplayReport) -> ReplayReport:
        return ReplayReport(
            self.replayed + other.replayed,
            self.key_taken + other.key_taken,
            self.gone + other.gone,
            self.broken + other.broken,
        )

    @property
    def total(self) -> int:
        """Dead jobs that were looked at."""
        return self.replayed + self.key_taken + self.gone + self.broken


@dataclass(frozen=True, slots=True)
class Group:
    """Dead jobs of one kind."""

    task: str
    error_type: str
    jobs: int
    """How many."""


# Named here, because `list` is a method there.
Letters = list[DeadLetter]
Groups = list[Group]
Page = list[DeadJob]
Keys = list[str]
Names = list[str]


class DeadLetters:
    """The dead-letter queues of an app, one per queue. Everything works in pages, however many there are."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def list(
        self,
        *,
        limit: int | None = 100,
        order: Literal["newest", "oldest"] = "newest",
        **filters: Unpack[Filters],
    ) -> Letters:
        """The dead jobs that meet the filters, of all queues together; `limit=None` gives every one."""
        newest = order == "newest"
        found: Letters = []
        for search in await self._searches(filters):
            found += [_letter(dead) async for dead in search.first(limit, newest)]
        found.sort(key=lambda letter: letter.died_at, reverse=newest)
        return found[:limit]

    async def scan(self, **filters: Unpack[Filters]) -> AsyncIterator[DeadLetter]:
        """Every dead job that meets the filters, queue by queue, the oldest first, read a page at a time."""
        for search in await self._searches(filters):
            async for dead in search.first(None):
                yield _letter(dead)

    async def get(self, job_id: str) -> DeadLetter | None:
        """Everything about a dead job; None when it is not dead. Raises InvalidJobId when the text is not one."""
        queue, key = split_id(job_id)
        client = self._app.client
        info = await client.ask(inspect.record(client.keys(queue), key))
        entry = _entry_of(info)
        dead = await client.ask(inspect.dead_entry(client.keys(queue), entry)) if entry else None
        return _detailed(dead, info) if dead and info else None

    async def count(self, **filters: Unpack[Filters]) -> int:
        """How many dead jobs meet the filters."""
        return sum([await search.count() for search in await self._searches(filters)])

    async def groups(self, **filters: Unpack[Filters]) -> Groups:
        """How many dead jobs there are by task and error type, the most first."""
        kinds = Counter([(letter.task, letter.error_type) async for letter in self.scan(**filters)])
        return [Group(task, error, jobs) for (task, error), jobs in kinds.most_common()]

    async def replay(
        self,
        *,
        limit: int | None = None,
        rate: float | None = None,
        progress: Progress | None = None,
        **filters: Unpack[Filters],
    ) -> ReplayReport:
        """Put dead jobs back, each as the same job with a fresh budget of retries, the oldest first.

        What dies while this runs is left for the next time. Interrupted half-way and run again it makes no
        duplicates: a job is either still dead or back. `rate` is the most per second.
        """
        report, pace = ReplayReport(), _Pace(rate)
        async for search, page in self._work(filters, limit, pace.most):
            await pace.wait_for(len(page))
            report += await search.replay(page)
            if progress:
                progress(report.total)
        return report

    async def purge(
        self, *, limit: int | None = None, progress: Progress | None = None, **filters: Unpack[Filters]
    ) -> int:
        """Remove dead jobs for good, with their records and results, the oldest first; answers how many."""
        removed = done = 0
        async for search, page in self._work(filters, limit, MOST_JOBS):
            removed += await search.forget(page)
            done += len(page)
            if progress:
                progress(done)
        return removed

    async def _work(
        self, filters: Filters, limit: int | None, most: int
    ) -> AsyncIterator[tuple[_Search, Page]]:
        """What meets the filters, in pages of at most `most`, and all together at most `limit`."""
        done = 0
        for search in await self._searches(filters):
            async for found in search.pages():
                page = found if limit is None else found[: limit - done]
                for start in range(0, len(page), most):
                    yield search, page[start : start + most]
                done += len(page)
                if done == limit:
                    return

    async def _searches(self, filters: Filters) -> Searches:
        """One search per queue, bounded by what is dead now: what dies later is not found."""
        client = self._app.client
        wanted = _Wanted.of(filters, await client.ask(census.now()))
        ids = _by_queue(filters["ids"]) if "ids" in filters else None
        queues = await self._queues(filters, ids)
        return [
            _Search(client, queue, wanted.until_entry(last[0].entry), None if ids is None else ids[queue])
            for queue, last in zip(queues, await _newest(client, queues), strict=True)
            if last
        ]

    async def _queues(self, filters: Filters, ids: dict[str, Keys] | None) -> Names:
        said = filters.get("queue")
        if said is not None:
            names = [valid_name("queue", name) for name in ([said] if isinstance(said, str) else said)]
            return [name for name in names if ids is None or name in ids]
        return sorted(await queues_of(self._app) if ids is None else ids)


class _Wanted(NamedTuple):
    """The filters, worked out: what an entry must be like, and between which ones it lies."""

    task: str | None
    error: str | None
    after: str
    """The entry before the first that may be meant."""
    before: str
    """The entry behind the last that may be meant."""
    everything: bool
    """True when nothing narrows the search."""

    @classmethod
    def of(cls, filters: Filters, now_ms: int) -> _Wanted:
        since, until, task = filters.get("since"), filters.get("until"), filters.get("task")
        return cls(
            task if task is None or isinstance(task, str) else task.name,
            filters.get("error"),
            "" if since is None else f"{max(0, _ms(since, now_ms) - 1)}-{_LAST_OF_MS}",
            "" if until is None else f"{_ms(until, now_ms) + 1}-0",
            everything=not any(name in filters for name in ("task", "error", "since", "until", "ids")),
        )

    def until_entry(self, newest: str) -> _Wanted:
        """The same, and not behind the entry `newest`."""
        ms, seq = _order(newest)
        bound = f"{ms}-{seq + 1}"
        return self if self.before and _order(self.before) < _order(bound) else self._replace(before=bound)

    def meets(self, dead: DeadJob) -> bool:
        """Whether an entry is one of those meant."""
        return (
            _named(dead.task, self.task, ":")
            and _named(dead.error_type, self.error, ".")
            and (not self.after or _order(self.after) < _order(dead.entry))
            and _order(dead.entry) < _order(self.before)
        )


class _Search:
    """The dead jobs that are meant, in one queue."""

    def __init__(self, client: Client, queue: str, wanted: _Wanted, ids: Keys | None) -> None:
        self._client, self._wanted, self._ids = client, wanted, ids
        self._keys = client.keys(queue)

    async def count(self) -> int:
        """How many."""
        if self._wanted.everything:
            return await self._client.ask(inspect.length(self._keys, "dlq"))
        return sum([len(page) async for page in self.pages()])

    async def first(self, limit: int | None, newest: bool = False) -> AsyncIterator[DeadJob]:
        """One by one, so many at most."""
        left = limit
        async for page in self.pages(newest):
            for dead in page[:left]:
                yield dead
            left = None if left is None else left - len(page)
            if left is not None and left <= 0:
                return

    async def pages(self, newest: bool = False) -> AsyncIterator[Page]:
        """The matching ones of each page, which may be none."""
        async for page in self._all(newest) if self._ids is None else self._given(self._ids):
            yield [dead for dead in page if self._wanted.meets(dead)]

    async def replay(self, page: Page) -> ReplayReport:
        """Put these back."""
        answers = await self._client.run(admin.replay(self._keys, [dead.entry for dead in page]))
        refused = [dead for dead, answer in zip(page, answers, strict=True) if answer == 0]
        still_there = await asyncio.gather(*(self._look(dead.entry) for dead in refused))
        broken = sum(dead is not None for dead in still_there)
        return ReplayReport(answers.count(1), answers.count(-1), len(refused) - broken, broken)

    async def forget(self, page: Page) -> int:
        """Remove these for good."""
        return await self._client.run(admin.forget(self._keys, [dead.entry for dead in page]))

    async def _all(self, newest: bool) -> AsyncIterator[Page]:
        at, end = self._wanted.after, self._wanted.before
        if newest:
            at, end = end, at or "0-0"
        while page := await self._client.ask(inspect.dead(self._keys, at, _PAGE, newest_first=newest)):
            yield page
            at = page[-1].entry
            if (_order(at) <= _order(end)) if newest else (_order(at) >= _order(end)):
                return

    async def _given(self, ids: Keys) -> AsyncIterator[Page]:
        for start in range(0, len(ids), MOST_JOBS):
            asked = [self._dead_job(key) for key in ids[start : start + MOST_JOBS]]
            yield [dead for dead in await asyncio.gather(*asked) if dead is not None]

    async def _dead_job(self, key: str) -> DeadJob | None:
        entry = _entry_of(await self._client.ask(inspect.record(self._keys, key)))
        return await self._look(entry) if entry else None

    async def _look(self, entry: str) -> DeadJob | None:
        return await self._client.ask(inspect.dead_entry(self._keys, entry))


Searches = list[_Search]


class _Pace:
    """At most so many per second, a tenth of a second's worth at a time."""

    def __init__(self, rate: float | None) -> None:
        if rate is not None and rate <= 0:
            raise ConfigurationError(f"rate must be more than 0 per second, not {rate}")
        self._rate = rate
        self._free_at = 0.0
        self.most = MOST_JOBS if rate is None else min(MOST_JOBS, max(1, int(rate / 10)))

    async def wait_for(self, jobs: int) -> None:
        """Returns when it is time for so many."""
        if self._rate is None:
            return
        now = clock.monotonic()
        await asyncio.sleep(max(0.0, self._free_at - now))
        self._free_at = max(now, self._free_at) + jobs / self._rate


async def _newest(client: Client, queues: Names) -> list[Page]:
    asked = (inspect.dead(client.keys(queue), "", 1, newest_first=True) for queue in queues)
    return await asyncio.gather(*map(client.ask, asked))


def _letter(dead: DeadJob) -> DeadLetter:
    return DeadLetter(
        id=dead.id,
        queue=dead.queue,
        task=dead.task,
        error_type=dead.error_type,
        message=dead.message,
        reason=dead.reason,
        died_at=clock.from_ms(dead.died_ms),
        entry=dead.entry,
    )


def _detailed(dead: DeadJob, info: JobInfo) -> DeadLetter:
    letter, failure = _letter(dead), info.error
    return replace(
        letter,
        message=failure.message if failure else letter.message,
        traceback=failure.traceback if failure else "",
        tries=info.tries,
        info=info,
    )


def _entry_of(info: JobInfo | None) -> str:
    place = info.place if info else None
    return place.removeprefix(_PLACE) if place and place.startswith(_PLACE) else ""


def _by_queue(ids: Iterable[str]) -> dict[str, Keys]:
    keys: dict[str, Keys] = {}
    for queue, key in map(split_id, dict.fromkeys([ids] if isinstance(ids, str) else ids)):
        keys.setdefault(queue, []).append(key)
    return keys


def _ms(moment: Moment, now_ms: int) -> int:
    if not isinstance(moment, datetime):
        return now_ms - round(seconds(moment) * 1000)
    if moment.tzinfo is None:
        raise ConfigurationError("since and until must know their time zone, for example datetime.now(UTC)")
    return epoch_ms(moment)


def _order(entry: str) -> tuple[int, int]:
    ms, _, seq = entry.partition("-")
    return int(ms), int(seq)


def _named(name: str, wanted: str | None, separator: str) -> bool:
    """Whether that is its name, in full or only the last part."""
    return wanted is None or name == wanted or name.rpartition(separator)[2] == wanted
