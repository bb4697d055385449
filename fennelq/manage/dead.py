"""The dead, and how to bring them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict, Unpack

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.dispatch import MOST_JOBS
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Finding, Finds, Found, Talk, ask, ask_all, pause, together
from fennelq.broker.verb import Command
from fennelq.broker.verbs.dead import DeadJob
from fennelq.errors import ConfigurationError
from fennelq.manage.choices import check_choice
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation, Scan
from fennelq.manage.queues import Progress, queues_of
from fennelq.model.checks import valid_name
from fennelq.model.job import JobInfo, split_id
from fennelq.model.units import epoch_ms, seconds

if TYPE_CHECKING:
    from fennelq.task import AnyTask

_PAGE = 500
"""Entries per read. Replaying and purging go in pages of MOST_JOBS: a script holds the server longer."""
_PLACE = "dlq/"
_LAST_OF_MS = (1 << 64) - 1

Moment = datetime | timedelta | float
"""A moment that knows its time zone, or how long ago: a timedelta or seconds."""
Order = Literal["newest", "oldest"]


class Filters(TypedDict, total=False):
    """Which dead jobs are meant: those that meet every filter."""

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
    """A dead job, as its dead-letter queue lists it. `message` is cut; `get(id)` has everything."""

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
    """Nothing left to do: they were replayed or removed by another caller at the same time."""
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


class DeadTalks(Family):
    """What can be asked of dead jobs and done with them."""

    _attribute, _item = "dlq", "letter"

    @Operation
    def list(
        self, *, limit: int | None = 100, order: Order = "newest", **filters: Unpack[Filters]
    ) -> Talk[Letters]:
        """The dead jobs that meet the filters, of all queues together; `limit=None` gives every one."""
        check_choice("order", order, Order)
        newest = order == "newest"
        found: Letters = []
        for search in (yield from self._searches(filters)):
            found += map(_letter, (yield from search.first(limit, newest)))
        found.sort(key=lambda letter: letter.died_at, reverse=newest)
        return found[:limit]

    @Scan
    def scan(self, **filters: Unpack[Filters]) -> Finding[DeadLetter]:
        """Every dead job that meets the filters, queue by queue, the oldest first, read a page at a time."""
        return self._scan(filters)

    @Operation
    def get(self, job_id: str) -> Talk[DeadLetter | None]:
        """Everything about a dead job; None when it is not dead. Raises InvalidJobId when the text is not one."""
        queue, key = split_id(job_id)
        keys = queue_keys(self._app.namespace, queue)
        info = yield from ask(verbs.jobs.record(keys, key))
        entry = _entry_of(info)
        dead = (yield from ask(verbs.dead.dead_entry(keys, entry))) if entry else None
        return _detailed(dead, info) if dead and info else None

    @Operation
    def count(self, **filters: Unpack[Filters]) -> Talk[int]:
        """How many dead jobs meet the filters."""
        searches = yield from self._searches(filters)
        return sum((yield from together(search.count() for search in searches)))

    @Operation
    def groups(self, **filters: Unpack[Filters]) -> Talk[Groups]:
        """How many dead jobs there are by task and error type, the most first."""
        kinds, letters = Counter[tuple[str, str]](), Finds(self._scan(filters))
        while (letter := (yield from letters.next())) is not None:
            kinds[letter.task, letter.error_type] += 1
        return [Group(task, error, jobs) for (task, error), jobs in kinds.most_common()]

    @Operation
    def replay(
        self,
        *,
        limit: int | None = None,
        rate: float | None = None,
        progress: Progress | None = None,
        **filters: Unpack[Filters],
    ) -> Talk[ReplayReport]:
        """Put dead jobs back, each as the same job with a fresh budget of retries, the oldest first.

        What dies while this runs is left for the next time. Interrupted half-way and run again it makes no
        duplicates: a job is either still dead or back. `rate` is the most per second.
        """
        report, pace = ReplayReport(), _Pace(rate)
        work = Finds(self._work(filters, limit, pace.most))
        while (found := (yield from work.next())) is not None:
            search, page = found
            yield from pace.wait_for(len(page))
            report += yield from search.replay(page)
            if progress:
                progress(report.total)
        return report

    @Operation
    def purge(
        self, *, limit: int | None = None, progress: Progress | None = None, **filters: Unpack[Filters]
    ) -> Talk[int]:
        """Remove dead jobs for good, with their records and results, the oldest first; answers how many."""
        removed = done = 0
        work = Finds(self._work(filters, limit, MOST_JOBS))
        while (found := (yield from work.next())) is not None:
            search, page = found
            removed += yield from search.forget(page)
            done += len(page)
            if progress:
                progress(done)
        return removed

    def _scan(self, filters: Filters) -> Finding[DeadLetter]:
        for search in (yield from self._searches(filters)):
            pages = Finds(search.pages())
            while (page := (yield from pages.next())) is not None:
                for dead in page:
                    yield Found(_letter(dead))

    def _work(self, filters: Filters, limit: int | None, most: int) -> Finding[tuple[_Search, Page]]:
        """What meets the filters, in pages of at most `most`, and all together at most `limit`."""
        done = 0
        for search in (yield from self._searches(filters)):
            pages = Finds(search.pages())
            while (found := (yield from pages.next())) is not None:
                page = found if limit is None else found[: limit - done]
                for start in range(0, len(page), most):
                    yield Found((search, page[start : start + most]))
                done += len(page)
                if done == limit:
                    return

    def _searches(self, filters: Filters) -> Talk[Searches]:
        """One search per queue, bounded by what is dead now: what dies later is not found."""
        wanted = _Wanted.of(filters, (yield from ask(verbs.server.now())))
        ids = _by_queue(filters["ids"]) if "ids" in filters else None
        queues = yield from self._queues(filters, ids)
        keys = [queue_keys(self._app.namespace, queue) for queue in queues]
        newest = yield from ask_all(verbs.dead.dead(of, "", 1, newest_first=True) for of in keys)
        return [
            _Search(of, wanted.until_entry(last[0].entry), None if ids is None else ids[of.queue])
            for of, last in zip(keys, newest, strict=True)
            if last
        ]

    def _queues(self, filters: Filters, ids: dict[str, Keys] | None) -> Talk[Names]:
        wanted = filters.get("queue")
        if wanted is not None:
            names = [valid_name("queue", name) for name in ([wanted] if isinstance(wanted, str) else wanted)]
            return [name for name in names if ids is None or name in ids]
        return sorted((yield from queues_of(self._app)) if ids is None else ids)


class DeadLetters(DeadTalks, Awaiting):
    """The dead-letter queues of an app, one per queue. Everything works in pages, however many there are."""


class BlockingDeadLetters(DeadTalks, Blocking):
    """The dead-letter queues of an app, for code without an event loop: `app.sync.dlq`."""


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

    def __init__(self, keys: QueueKeys, wanted: _Wanted, ids: Keys | None) -> None:
        self._keys, self._wanted, self._ids = keys, wanted, ids

    def count(self) -> Talk[int]:
        """How many."""
        if self._wanted.everything:
            return (yield from ask(verbs.queues.length(self._keys, "dlq")))
        count, pages = 0, Finds(self.pages())
        while (page := (yield from pages.next())) is not None:
            count += len(page)
        return count

    def first(self, limit: int | None, newest: bool) -> Talk[Page]:
        """So many at most."""
        found: Page = []
        pages = Finds(self.pages(newest))
        while (page := (yield from pages.next())) is not None:
            found += page
            if limit is not None and len(found) >= limit:
                break
        return found[:limit]

    def pages(self, newest: bool = False) -> Finding[Page]:
        """The matching ones of each page, which may be none."""
        pages = Finds(self._all(newest) if self._ids is None else self._given(self._ids))
        while (page := (yield from pages.next())) is not None:
            yield Found([dead for dead in page if self._wanted.meets(dead)])

    def replay(self, page: Page) -> Talk[ReplayReport]:
        """Put these back."""
        answers = yield from ask(verbs.dead.replay(self._keys, [dead.entry for dead in page]))
        refused = [dead for dead, answer in zip(page, answers, strict=True) if answer == 0]
        still_there = yield from ask_all(self._look(dead.entry) for dead in refused)
        broken = sum(dead is not None for dead in still_there)
        return ReplayReport(answers.count(1), answers.count(-1), len(refused) - broken, broken)

    def forget(self, page: Page) -> Talk[int]:
        """Remove these for good."""
        return (yield from ask(verbs.dead.forget(self._keys, [dead.entry for dead in page])))

    def _all(self, newest: bool) -> Finding[Page]:
        at, end = self._wanted.after, self._wanted.before
        if newest:
            at, end = end, at or "0-0"
        while page := (yield from ask(verbs.dead.dead(self._keys, at, _PAGE, newest_first=newest))):
            yield Found(page)
            at = page[-1].entry
            if (_order(at) <= _order(end)) if newest else (_order(at) >= _order(end)):
                return

    def _given(self, ids: Keys) -> Finding[Page]:
        for start in range(0, len(ids), MOST_JOBS):
            found = yield from together(map(self._dead_job, ids[start : start + MOST_JOBS]))
            yield Found([dead for dead in found if dead is not None])

    def _dead_job(self, key: str) -> Talk[DeadJob | None]:
        entry = _entry_of((yield from ask(verbs.jobs.record(self._keys, key))))
        return (yield from ask(self._look(entry))) if entry else None

    def _look(self, entry: str) -> Command[DeadJob | None]:
        return verbs.dead.dead_entry(self._keys, entry)


Searches = list[_Search]


class _Pace:
    """At most so many per second, a tenth of a second's worth at a time."""

    def __init__(self, rate: float | None) -> None:
        if rate is not None and rate <= 0:
            raise ConfigurationError(f"rate must be more than 0 per second, not {rate}")
        self._rate = rate
        self._free_at = 0.0
        self.most = MOST_JOBS if rate is None else min(MOST_JOBS, max(1, int(rate / 10)))

    def wait_for(self, jobs: int) -> Talk[None]:
        """Returns when it is time for so many."""
        if self._rate is None:
            return
        now = clock.monotonic()
        yield from pause(max(0.0, self._free_at - now))
        self._free_at = max(now, self._free_at) + jobs / self._rate


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
