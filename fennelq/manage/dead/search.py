"""Finds the dead jobs that match filters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypedDict, cast

from fennelq.broker import verbs
from fennelq.broker.dispatch import by_queues, in_pages, pages, raise_first
from fennelq.broker.keys import QueueKeys
from fennelq.broker.talk import Finding, Finds, Found, Talk, ask, ask_all, together
from fennelq.broker.verb import MOST_JOBS
from fennelq.broker.verbs.dead import OTHERS, Changes, DeadJob, GroupIndex, order
from fennelq.errors import ConfigurationError, InvalidFilter
from fennelq.manage.dead.letter import ReplayReport
from fennelq.manage.dead.where import Where
from fennelq.model.fingerprint import is_fingerprint
from fennelq.model.job import JobInfo, split_id
from fennelq.model.units import epoch_ms, seconds

if TYPE_CHECKING:
    from fennelq.task import AnyTask

PAGE = 500
"""Entries per read. Replaying and purging use pages of MOST_JOBS, because their scripts block the server for longer."""
_PLACE = "dlq/"
MANY_CAUSES = (
    f"{OTHERS!r} stands for jobs of many causes, so it is neither replayed nor removed as a whole: "
    "select these jobs by their task, their error, a filter or their ids"
)
_LAST_OF_MS = (1 << 64) - 1
_AHEAD_MS = 60_000
"""By so much, the clock of the caller may be ahead of the server's."""

Moment = datetime | timedelta | float
"""A datetime with a time zone, or a time before now: a timedelta or seconds."""


class Filters(TypedDict, total=False):
    """Selects dead jobs: those that match every filter."""

    queue: str | Sequence[str]
    """Only of this queue, or these. Default: every queue that the app has used."""
    task: str | AnyTask
    """`module:function`, or only the function's name."""
    error: str
    """Type of the error, with its module (`shop.errors.CardRefused`) or without."""
    since: Moment
    """Only jobs that died at this moment or later."""
    until: Moment
    """Only jobs that died at this moment or earlier."""
    fingerprint: str
    """Only jobs whose failure has this fingerprint; `other` for those that `groups()` counts as `other`, which
    can be listed, counted and exported, but not replayed or removed together."""
    ids: Iterable[str]
    """Only these jobs."""
    where: str
    """Only jobs that match this filter: `header:tenant=acme "no card"`. Its times are those of the deaths."""


Page = list[DeadJob]


Keys = list[str]


class Wanted(NamedTuple):
    """The filters, resolved: what an entry must contain, and between which entries it must be."""

    task: str | None
    error: str | None
    after: str
    """The last entry before those that may match."""
    before: str
    """The first entry after those that may match."""
    fingerprint: str | None
    everything: bool
    """True when every entry of the queue matches."""
    only_group: bool
    """True when every job of the group matches."""
    known: frozenset[str] = frozenset()
    """The groups of the queue, for a search of the jobs that have none."""
    jobs: int | None = None
    """How many match, when the index shows that."""

    @classmethod
    def of(cls, filters: Filters, now_ms: int, where: Where | None = None) -> Wanted:
        """These filters, resolved at this moment. `where` is the filter that is among them."""
        task = filters.get("task")
        since, until = _times(filters, now_ms, where)
        return cls(
            task if task is None or isinstance(task, str) else task.name,
            filters.get("error"),
            "" if since is None else f"{max(0, since - 1)}-{_LAST_OF_MS}",
            "" if until is None else f"{until + 1}-0",
            _checked_fingerprint(filters.get("fingerprint")),
            everything=not filters.keys() - {"queue"},
            only_group=not filters.keys() - {"queue", "fingerprint"},
        )

    def until_entry(self, newest: str) -> Wanted:
        """The same, but without entries after `newest`."""
        ms, seq = order(newest)
        bound = f"{ms}-{seq + 1}"
        return self if self.before and order(self.before) < order(bound) else self._replace(before=bound)

    def in_group(self, index: GroupIndex) -> Wanted | None:
        """The same, between the first and the newest entry of the group that this index has; None when the index shows
        that it has no job."""
        groups = {group.fingerprint: group for group in index.groups}
        known = self._replace(known=frozenset(groups))
        if not index.is_complete:
            return known
        group = groups.get(self.fingerprint or "") or groups.get(OTHERS)
        if group is None:
            return None
        ms, number = order(group.first)
        after = f"{ms}-{number - 1}" if number else f"{max(0, ms - 1)}-{_LAST_OF_MS}"
        later = self.after if self.after and order(self.after) > order(after) else after
        jobs = group.jobs if self.only_group and group.fingerprint == self.fingerprint else None
        return known._replace(after=later, jobs=jobs).until_entry(group.newest)

    def _is_of_group(self, dead: DeadJob) -> bool:
        if self.fingerprint == OTHERS:
            return dead.fingerprint not in self.known
        return self.fingerprint is None or dead.fingerprint == self.fingerprint

    def meets(self, dead: DeadJob) -> bool:
        """Whether an entry matches."""
        return (
            named(dead.task, self.task, ":")
            and named(dead.error_type, self.error, ".")
            and (not self.after or order(self.after) < order(dead.entry))
            and order(dead.entry) < order(self.before)
            and self._is_of_group(dead)
        )


class Search:
    """The dead jobs of one queue that match."""

    def __init__(
        self, keys: QueueKeys, wanted: Wanted, newest: str, ids: Keys | None, where: Where | None = None
    ) -> None:
        """It does not find entries after `newest`."""
        self.keys, self.newest, self._ids, self._where = keys, newest, ids, where
        self._wanted = wanted.until_entry(newest)

    @property
    def is_of_ids(self) -> bool:
        """Whether it looks for jobs by their ids, in any order of their deaths."""
        return self._ids is not None

    def in_group(self) -> Talk[Search | None]:
        """The same, among the entries of the group that it is about; None when the queue has no such job."""
        wanted = self._wanted.in_group((yield from ask(verbs.dead.groups(self.keys))))
        return None if wanted is None else Search(self.keys, wanted, self.newest, self._ids, self._where)

    @property
    def pauses(self) -> bool:
        """Whether it pauses between its steps."""
        return self._where is not None

    def count(self) -> Talk[int]:
        """The number of matching jobs."""
        if self._wanted.everything:
            return (yield from ask(verbs.queues.length(self.keys, "dlq")))
        if self._wanted.jobs is not None:
            return self._wanted.jobs
        count, read = 0, Finds(self.pages())
        while (page := (yield from read.next())) is not None:
            count += len(page)
        return count

    def first(self, limit: int | None, newest: bool) -> Talk[Page]:
        """At most `limit` of them."""
        found: Page = []
        read = Finds(self.pages(newest))
        while (page := (yield from read.next())) is not None:
            found += page
            if limit is not None and len(found) >= limit:
                break
        return found[:limit]

    def pages(self, newest: bool = False) -> Finding[Page]:
        """Yields the matching jobs of each page; the list may be empty."""
        read = Finds(self._all(newest) if self._ids is None else self._given(self._ids))
        while (page := (yield from read.next())) is not None:
            yield Found((yield from self._met([dead for dead in page if self._wanted.meets(dead)])))

    def _met(self, page: Page) -> Talk[Page]:
        if self._where is None:
            return page
        if not self.is_of_ids:
            return (yield from self._where.met(self.keys, page))
        met: Page = []
        for dead in page:  # each alone: there may be many others between them
            met += yield from self._where.met(self.keys, [dead])
        return met

    def forget(self, page: Page) -> Talk[int]:
        """Remove these jobs for good."""
        return (yield from ask(verbs.dead.forget(self.keys, [dead.entry for dead in page])))

    def _all(self, newest: bool) -> Finding[Page]:
        at, end = self._wanted.after, self._wanted.before
        if newest:
            at, end = end, at or "0-0"
        while page := (yield from ask(verbs.dead.dead(self.keys, at, PAGE, newest_first=newest))):
            yield Found(page)
            at = page[-1].entry
            if (order(at) <= order(end)) if newest else (order(at) >= order(end)):
                return

    def _given(self, ids: Keys) -> Finding[Page]:
        for page in pages(ids, MOST_JOBS):
            found = yield from together(map(self._dead_job, page))
            yield Found([dead for dead in found if dead is not None])

    def _dead_job(self, key: str) -> Talk[DeadJob | None]:
        entry = dlq_entry((yield from ask(verbs.jobs.record(self.keys, key))))
        return (yield from ask(verbs.dead.dead_entry(self.keys, entry))) if entry else None


def in_their_groups(searches: Iterable[Search]) -> Talk[list[Search]]:
    """These searches for the jobs of a group, of the queues that have some."""
    found = yield from together(search.in_group() for search in searches)
    return [search for search in found if search is not None]


def replayed(keys: QueueKeys, page: Page, changes: Changes | None = None) -> Talk[ReplayReport]:
    """Put these dead jobs of a queue back, perhaps with new arguments."""
    answers = yield from answers_of(keys, page, changes or {})
    return (yield from report_of(keys, page, answers))


def answers_of(keys: QueueKeys, page: Page, changes: Changes) -> Talk[Sequence[int]]:
    """Put these dead jobs back; returns the answer about each."""
    return (yield from put_back(keys, [dead.entry for dead in page], changes))


def put_back(keys: QueueKeys, entries: Sequence[str], changes: Changes) -> Talk[Sequence[int]]:
    """Put the jobs of these entries back, perhaps with new arguments: 1 replayed, 0 no longer dead, -1 its key is
    taken. Large arguments are sent in several calls."""

    def replay(some: Sequence[str]) -> Talk[Sequence[int]]:
        return (yield from ask(verbs.dead.replay(keys, some, changes)))

    if not changes:
        return (yield from replay(entries)) if entries else []
    answers = yield from in_pages(entries, replay, lambda entry: changes[entry].size)
    raise_first(answers)
    return cast("list[int]", answers)


def report_of(keys: QueueKeys, page: Page, answers: Sequence[int]) -> Talk[ReplayReport]:
    """The report about these jobs. It distinguishes those that are gone from those that cannot be read."""
    refused = [dead for dead, answer in zip(page, answers, strict=True) if answer == 0]
    broken = len((yield from still_dead(keys, refused)))
    return ReplayReport(answers.count(1), answers.count(-1), len(refused) - broken, broken)


def still_dead(keys: QueueKeys, page: Page) -> Talk[Page]:
    """Those of these jobs whose entries are still in the dead-letter queue."""
    entries = yield from ask_all(verbs.dead.dead_entry(keys, dead.entry) for dead in page)
    return [dead for dead, entry in zip(page, entries, strict=True) if entry is not None]


def dlq_entry(info: JobInfo | None) -> str:
    """The entry of a job in the dead-letter queue; empty when it is not dead."""
    place = info.place if info else None
    return place.removeprefix(_PLACE) if place and place.startswith(_PLACE) else ""


def keys_in_queues(ids: Iterable[str]) -> dict[str, Keys]:
    """The job keys of each queue. Raises InvalidJobId when a text is not a job id."""
    every = map(split_id, dict.fromkeys([ids] if isinstance(ids, str) else ids))
    return {queue: [key for _, key in some] for queue, some in by_queues(every, itemgetter(0)).items()}


def check_cause(filters: Filters) -> None:
    """Raises InvalidFilter when the filters name the jobs of further causes as if they were one group: they can be
    listed, counted and exported together, but not replayed or removed."""
    if filters.get("fingerprint") == OTHERS:
        raise InvalidFilter(MANY_CAUSES)


def _checked_fingerprint(text: str | None) -> str | None:
    if text is None or text == OTHERS or is_fingerprint(text.lower()):
        return text if text is None else text.lower()
    raise ConfigurationError(
        f"a fingerprint has 8 hexadecimal digits, as dlq.groups() shows it: not {text!r}"
    )


def _times(filters: Filters, now_ms: int, where: Where | None) -> tuple[int | None, int | None]:
    """The earliest and the latest moment. Raises ConfigurationError when the earliest one is in the future, also by the
    clock of another machine, and InvalidFilter when it is later than the latest one."""
    first, last = filters.get("since"), filters.get("until")
    since = None if first is None else moment_ms(first, now_ms)
    until = None if last is None else moment_ms(last, now_ms)
    if since is not None and since > now_ms + _AHEAD_MS:
        raise ConfigurationError("since is in the future: it must be a time before now")
    if where is not None:
        starts = [ms for ms in (since, where.query.since_ms) if ms is not None]
        ends = [ms for ms in (until, where.query.until_ms) if ms is not None]
        since, until = max(starts, default=None), min(ends, default=None)
    if since is not None and until is not None and since > until:
        raise InvalidFilter("since is later than until: no job can match both")
    return since, until


def moment_ms(moment: Moment, now_ms: int) -> int:
    """A moment, or a time before now, in milliseconds since the epoch."""
    if not isinstance(moment, datetime):
        return now_ms - round(seconds(moment) * 1000)
    if moment.tzinfo is None:
        raise ConfigurationError("since and until must have a time zone, for example datetime.now(UTC)")
    return epoch_ms(moment)


def named(name: str, wanted: str | None, separator: str) -> bool:
    """Whether `wanted` is this name, in full or only its last part."""
    return wanted is None or name == wanted or name.rpartition(separator)[2] == wanted
