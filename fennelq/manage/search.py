"""Finds the dead jobs that match filters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from fennelq.broker import verbs
from fennelq.broker.dispatch import by_queues, pages
from fennelq.broker.keys import QueueKeys
from fennelq.broker.talk import Finding, Finds, Found, Talk, ask, ask_all, together
from fennelq.broker.verb import MOST_JOBS
from fennelq.broker.verbs.dead import DeadJob
from fennelq.errors import ConfigurationError
from fennelq.manage.dead_letter import ReplayReport
from fennelq.model.job import JobInfo, split_id
from fennelq.model.units import epoch_ms, seconds

if TYPE_CHECKING:
    from fennelq.task import AnyTask

PAGE = 500
"""Entries per read. Replaying and purging use pages of MOST_JOBS, because their scripts block the server for longer."""
_PLACE = "dlq/"
_LAST_OF_MS = (1 << 64) - 1

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
    ids: Iterable[str]
    """Only these jobs."""


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
    everything: bool
    """True when every entry of the queue matches."""

    @classmethod
    def of(cls, filters: Filters, now_ms: int) -> Wanted:
        """These filters, resolved at this moment."""
        since, until, task = filters.get("since"), filters.get("until"), filters.get("task")
        return cls(
            task if task is None or isinstance(task, str) else task.name,
            filters.get("error"),
            "" if since is None else f"{max(0, _ms(since, now_ms) - 1)}-{_LAST_OF_MS}",
            "" if until is None else f"{_ms(until, now_ms) + 1}-0",
            everything=not any(name in filters for name in ("task", "error", "since", "until", "ids")),
        )

    def until_entry(self, newest: str) -> Wanted:
        """The same, but without entries after `newest`."""
        ms, seq = _order(newest)
        bound = f"{ms}-{seq + 1}"
        return self if self.before and _order(self.before) < _order(bound) else self._replace(before=bound)

    def meets(self, dead: DeadJob) -> bool:
        """Whether an entry matches."""
        return (
            named(dead.task, self.task, ":")
            and named(dead.error_type, self.error, ".")
            and (not self.after or _order(self.after) < _order(dead.entry))
            and _order(dead.entry) < _order(self.before)
        )


class Search:
    """The dead jobs of one queue that match."""

    def __init__(self, keys: QueueKeys, wanted: Wanted, ids: Keys | None) -> None:
        self._keys, self._wanted, self._ids = keys, wanted, ids

    def count(self) -> Talk[int]:
        """The number of matching jobs."""
        if self._wanted.everything:
            return (yield from ask(verbs.queues.length(self._keys, "dlq")))
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
            yield Found([dead for dead in page if self._wanted.meets(dead)])

    def replay(self, page: Page) -> Talk[ReplayReport]:
        """Put these jobs back."""
        return (yield from replayed(self._keys, page))

    def forget(self, page: Page) -> Talk[int]:
        """Remove these jobs for good."""
        return (yield from ask(verbs.dead.forget(self._keys, [dead.entry for dead in page])))

    def _all(self, newest: bool) -> Finding[Page]:
        at, end = self._wanted.after, self._wanted.before
        if newest:
            at, end = end, at or "0-0"
        while page := (yield from ask(verbs.dead.dead(self._keys, at, PAGE, newest_first=newest))):
            yield Found(page)
            at = page[-1].entry
            if (_order(at) <= _order(end)) if newest else (_order(at) >= _order(end)):
                return

    def _given(self, ids: Keys) -> Finding[Page]:
        for page in pages(ids, MOST_JOBS):
            found = yield from together(map(self._dead_job, page))
            yield Found([dead for dead in found if dead is not None])

    def _dead_job(self, key: str) -> Talk[DeadJob | None]:
        entry = dlq_entry((yield from ask(verbs.jobs.record(self._keys, key))))
        return (yield from ask(verbs.dead.dead_entry(self._keys, entry))) if entry else None


def replayed(keys: QueueKeys, page: Page) -> Talk[ReplayReport]:
    """Put these dead jobs of a queue back."""
    answers = yield from ask(verbs.dead.replay(keys, [dead.entry for dead in page]))
    refused = [dead for dead, answer in zip(page, answers, strict=True) if answer == 0]
    still_there = yield from ask_all(verbs.dead.dead_entry(keys, dead.entry) for dead in refused)
    broken = sum(dead is not None for dead in still_there)
    return ReplayReport(answers.count(1), answers.count(-1), len(refused) - broken, broken)


def dlq_entry(info: JobInfo | None) -> str:
    """The entry of a job in the dead-letter queue; empty when it is not dead."""
    place = info.place if info else None
    return place.removeprefix(_PLACE) if place and place.startswith(_PLACE) else ""


def keys_in_queues(ids: Iterable[str]) -> dict[str, Keys]:
    """The job keys of each queue. Raises InvalidJobId when a text is not a job id."""
    every = map(split_id, dict.fromkeys([ids] if isinstance(ids, str) else ids))
    return {queue: [key for _, key in some] for queue, some in by_queues(every, itemgetter(0)).items()}


def _ms(moment: Moment, now_ms: int) -> int:
    if not isinstance(moment, datetime):
        return now_ms - round(seconds(moment) * 1000)
    if moment.tzinfo is None:
        raise ConfigurationError("since and until must have a time zone, for example datetime.now(UTC)")
    return epoch_ms(moment)


def _order(entry: str) -> tuple[int, int]:
    ms, _, seq = entry.partition("-")
    return int(ms), int(seq)


def named(name: str, wanted: str | None, separator: str) -> bool:
    """Whether `wanted` is this name, in full or only its last part."""
    return wanted is None or name == wanted or name.rpartition(separator)[2] == wanted
