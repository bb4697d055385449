"""Selects dead jobs so that a later search finds the same ones again, and none that has died since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fennelq.broker import verbs
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Finding, Finds, Found, Replies, Talk, ask, together
from fennelq.broker.verb import MOST_JOBS
from fennelq.broker.verbs.dead import DeadJob
from fennelq.errors import BrokerUnavailable
from fennelq.manage.dead.letter import ReplayReport
from fennelq.manage.dead.search import Filters, Keys, Page, Search, Wanted, in_their_groups, keys_in_queues
from fennelq.manage.dead.spool import Spool
from fennelq.manage.dead.where import Where
from fennelq.manage.finding import problem_of
from fennelq.manage.queues.queues import queues_of
from fennelq.model.checks import valid_name

if TYPE_CHECKING:
    from fennelq.app import App


class Bound(NamedTuple):
    """The moment at which jobs were selected, and the newest entry of each queue then. Jobs that die later are not
    among them."""

    at_ms: int
    newest: Mapping[str, str] | None
    """None: the newest ones now."""


class Kinds:
    """The kinds of some deaths, by their fingerprints. If an executor of an earlier release has written one of two
    entries, it has no fingerprint: then this compares the task, the type and the reason."""

    def __init__(self) -> None:
        self._fingerprints = set[str]()
        self._outlines = set[str]()
        self._unsigned = set[str]()
        """The outlines of the deaths without a fingerprint."""

    def add(self, page: Page) -> None:
        """Add the kinds of these deaths."""
        for dead in page:
            self._outlines.add(_outline(dead))
            if dead.given:
                self._fingerprints.add(dead.fingerprint)
            else:
                self._unsigned.add(_outline(dead))

    def has(self, dead: DeadJob) -> bool:
        """Whether a death is of one of these kinds."""
        if dead.given:
            return dead.fingerprint in self._fingerprints or _outline(dead) in self._unsigned
        return _outline(dead) in self._outlines


def _outline(dead: DeadJob) -> str:
    return f"{dead.task}\n{dead.error_type}\n{dead.reason}"


class Selected(NamedTuple):
    """How the jobs of a plan are found again."""

    filters: Filters
    limit: int | None
    bound: Bound | None = None
    """None: those that match when they are looked for."""
    kinds: Kinds | None = None
    """The kinds of their deaths; None when they were not looked at."""
    changes: Spool | None = None
    """Their new arguments; None when they keep theirs."""
    left: ReplayReport = ReplayReport()
    """Those that get no new arguments, so that they stay dead."""
    problem: BrokerUnavailable | None = None
    """Why a queue is left out."""


def bound_of(jobs: Selected) -> Bound:
    """The bound of jobs that were selected at a moment."""
    assert jobs.bound is not None
    return jobs.bound


Searches = list[Search]


def selected(app: App, filters: Filters, limit: int | None) -> Talk[tuple[Selected, Searches]]:
    """The jobs that match now, in a form in which they are found again."""
    if "ids" in filters:
        ids = filters["ids"]
        filters = {**filters, "ids": [ids] if isinstance(ids, str) else [*ids]}
    now_ms = yield from ask(verbs.server.now())
    found, problem = yield from looked(app, filters, Bound(now_ms, None))
    newest = {search.keys.queue: search.newest for search in found}
    return Selected(filters, limit, Bound(now_ms, newest), problem=problem), found


def searches(app: App, filters: Filters) -> Talk[Searches]:
    """One search per queue. Of all queues, it leaves out those that cannot be read: the list of queues shows them."""
    found, _ = yield from looked(app, filters)
    return found


def looked(
    app: App, filters: Filters, bound: Bound | None = None
) -> Talk[tuple[Searches, BrokerUnavailable | None]]:
    """One search per queue, and why a queue cannot be read. The end of a search is the newest job that is dead now, or
    was when the bound was made: it does not find jobs that die later. Raises the problem of a queue that the filters
    name."""
    now_ms = bound.at_ms if bound else (yield from ask(verbs.server.now()))
    where = Where.of(filters["where"], now_ms) if "where" in filters else None
    wanted = Wanted.of(filters, now_ms, where)
    ids = ids_in(filters, where)
    queues = yield from queues_in(app, filters, ids)
    keys = [queue_keys(app.namespace, queue) for queue in queues if where is None or where.has_queue(queue)]
    newest, problem = None if bound is None else bound.newest, None
    if newest is None:
        newest, problem = yield from _newest(app, keys)
    if problem and (ids is not None or "queue" in filters or (where and where.query.values("queue"))):
        raise problem
    found = [
        Search(of, wanted, newest[of.queue], None if ids is None else ids[of.queue], where)
        for of in keys
        if of.queue in newest
    ]
    return found if wanted.fingerprint is None else (yield from in_their_groups(found)), problem


def _newest(app: App, every: Sequence[QueueKeys]) -> Talk[tuple[dict[str, str], BrokerUnavailable | None]]:
    """The newest entry of each queue that has dead jobs; and why one cannot be read: that does not stop the others."""
    newest, problem = dict[str, str](), None
    steps = [verbs.dead.dead(keys, "", 1, newest_first=True) for keys in every]
    replies: Replies = (yield steps) if steps else []
    for keys, reply in zip(every, replies, strict=True):
        if isinstance(reply, BrokerUnavailable) and reply.retriable:
            raise reply
        if isinstance(reply, Exception):
            problem = problem or problem_of(app, keys.queue, reply)
        elif reply:
            newest[keys.queue] = reply[0].entry
    return newest, problem


def in_pages_of(app: App, jobs: Selected, most: int) -> Finding[tuple[Search, Page]]:
    """The selected jobs, in pages of at most `most`. Raises BrokerUnavailable at the end if a queue cannot be read."""
    done = 0
    found_in, problem = yield from looked(app, jobs.filters, jobs.bound)
    for search in found_in:
        read = Finds(search.pages())
        while (found := (yield from read.next())) is not None:
            page = found if jobs.limit is None else found[: jobs.limit - done]
            for part in pages(page, most):
                yield Found((search, part))
            done += len(page)
            if done == jobs.limit:
                return
    if problem is not None:
        raise problem


def number_of(found: Searches) -> Talk[int]:
    """How many jobs these searches find."""
    if not any(search.pauses for search in found):
        return sum((yield from together(search.count() for search in found)))
    number = 0
    for search in found:
        number += yield from search.count()
    return number


def kinds_of(app: App, jobs: Selected) -> Talk[Kinds]:
    """The kinds of the deaths of the selected jobs."""
    if jobs.kinds is not None:
        return jobs.kinds
    kinds, read = Kinds(), Finds(in_pages_of(app, jobs, MOST_JOBS))
    while (found := (yield from read.next())) is not None:
        kinds.add(found[1])
    return kinds


def ids_in(filters: Filters, where: Where | None) -> dict[str, Keys] | None:
    """The jobs that the filters name, by queue; None when they name none."""
    named = [*where.query.ids] if where else []
    if "ids" not in filters:
        return keys_in_queues(named) if named else None
    given = filters["ids"]
    ids = [given] if isinstance(given, str) else [*given]
    return keys_in_queues([job for job in ids if job in named] if named else ids)


def queues_in(app: App, filters: Filters, ids: dict[str, Keys] | None) -> Talk[list[str]]:
    """The queues that the filters name, or all."""
    wanted = filters.get("queue")
    if wanted is not None:
        names = [valid_name("queue", name) for name in ([wanted] if isinstance(wanted, str) else wanted)]
        return [name for name in names if ids is None or name in ids]
    return sorted((yield from queues_of(app)) if ids is None else ids)
