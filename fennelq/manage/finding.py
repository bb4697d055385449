"""Searches the jobs of all queues, a step at a time.

The server has other work too: after each step, a search pauses four times as long as the step took, so it takes at
most a fifth of a core. A job that becomes due meanwhile, or comes out of a line, is not missed, because it comes to a
place that is searched later. A run that fails or is handed back meanwhile may be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.diagnosis import diagnose
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Finding, Finds, Found, Replies, Talk, ask, pause, together
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verbs.search import Criteria, Hit, Step, find, line_place, places_of, size
from fennelq.errors import BrokerUnavailable, InvalidFilter
from fennelq.manage.large_records import PAUSES, sure
from fennelq.manage.queues.queues import queues_of
from fennelq.model.job import JobInfo, Status, split_id
from fennelq.model.query import ENDED, Query, State, parse
from fennelq.result import with_due

if TYPE_CHECKING:
    from fennelq.app import App

MOST_HITS: Final = 1000
"""The hits after which a search for people stops."""
_LINES_AT_ONCE: Final = 100
_RECORDS_AT_ONCE: Final = 20
"""Records per round trip. Each may have a megabyte of arguments."""
_QUEUES_AT_ONCE: Final = 50
_LINES: Final = line_place("")
"""Before all lines."""
_END: Final = "end"
"""After all places of a queue."""
_SETS: Final = frozenset({State.SCHEDULED, State.RETRY})
_STATES: Final = {
    Status.SENT: State.WAITING,
    Status.EXECUTING: State.RUNNING,
    Status.SCHEDULED: State.SCHEDULED,
    Status.RETRY: State.RETRY,
    Status.DEAD: State.DEAD,
    Status.SUCCESS: State.SUCCESS,
    Status.CANCELLED: State.CANCELLED,
}


class SearchProgress(NamedTuple):
    """How far a search has come."""

    looked: int
    """The number of jobs that it has looked at."""
    total: int
    """How many there were to look at when it began."""
    found: int
    unreadable: int = 0
    """How many of the jobs have a record that cannot be read. They are passed over."""


OnSearch = Callable[[SearchProgress], None]
"""Called after each step of a search."""


class At(NamedTuple):
    """Where a search goes on."""

    queue: str = ""
    """Queues are searched in the order of their names."""
    place: str = ""
    cursor: str = ""
    lines: str = "0"
    """The cursor of the page of lines, while these are searched."""

    def to_text(self) -> str:
        """This place as text, for a later process."""
        return orjson.dumps(list(self)).decode()

    @classmethod
    def from_text(cls, text: str) -> At:
        """The place that `to_text` describes; the beginning for any other text."""
        try:
            parts = [str(part) for part in orjson.loads(text)]
        except (ValueError, TypeError):
            return cls()
        return cls(*parts) if len(parts) == len(cls._fields) else cls()


class Page(NamedTuple):
    """The hits of one step, all of one queue. There may be none."""

    keys: QueueKeys
    hits: list[Hit]


class Search:
    """The jobs in live states that meet some criteria. `at` and the counts change from step to step."""

    def __init__(self, app: App, criteria: Criteria, at: At | None = None, *, most: int = MOST_HITS) -> None:
        """`most` is the number of hits of a step."""
        self._app, self._criteria, self._most = app, criteria, most
        self._states = criteria.query.states
        self.at = at or At()
        """Where it goes on after the step that was yielded last."""
        self.looked = self.unreadable = self.ahead = 0
        self.problem: BrokerUnavailable | None = None
        """Why a place could not be searched. The others were."""
        self._left_out: set[str] = set()

    def pages(self) -> Finding[Page]:
        """Yields the hits of each step."""
        begin = self.at
        for queue in (yield from _queues(self._app, self._criteria.query)):
            if queue < begin.queue:
                continue
            at = begin if queue == begin.queue else At(queue)
            try:
                yield from self._in_queue(queue_keys(self._app.namespace, queue), at)
            except (ReplyError, BrokerUnavailable) as error:
                if isinstance(error, BrokerUnavailable) and error.retriable:
                    raise
                self._note(queue, error)

    def leave_out(self, queue: str, error: Exception) -> None:
        """Search no further in this queue, because of this error."""
        self._left_out.add(queue)
        self._note(queue, error)

    def total(self) -> Talk[int]:
        """How many jobs there are to look at, from the beginning."""
        places, total = places_of(self._states), 0
        for page in pages((yield from _queues(self._app, self._criteria.query)), _QUEUES_AT_ONCE):
            every = [queue_keys(self._app.namespace, queue) for queue in page]
            sizes = [size(keys, place) for keys in every for place in places]
            if State.LIMITED in self._states:
                sizes += [verbs.lines.parked(keys) for keys in every]
            replies: Replies = (yield sizes) if sizes else []
            total += sum(reply for reply in replies if isinstance(reply, int))
        return total

    def _in_queue(self, keys: QueueKeys, at: At) -> Finding[Page]:
        """The places in the order in which jobs move on: a due job goes to a line or to a lane, and from a line to a
        lane."""
        if at.place == _END:
            return
        places, end = places_of(self._states), At(keys.queue, _END)
        lines = State.LIMITED in self._states and (yield from ask(verbs.lines.number(keys))) > 0
        if not (lines or at.place.startswith(_LINES)):
            yield from self._in_places(keys, places, at, end)
            return
        before = [place for place in places if place in places_of(_SETS)]
        after = places[len(before) :]
        if not at.place or at.place in before:
            yield from self._in_places(keys, before, at, At(keys.queue, _LINES))
            at = At(keys.queue, _LINES)
        if at.place not in after:
            yield from self._in_lines(keys, at, At(keys.queue, after[0]) if after else end)
            at = At(keys.queue)
        yield from self._in_places(keys, after, at, end)

    def _in_lines(self, keys: QueueKeys, at: At, then: At) -> Finding[Page]:
        cursor = at.lines
        while True:
            next_cursor, lines = yield from ask(verbs.lines.scan(keys, cursor, _LINES_AT_ONCE))
            next_page = then if next_cursor == "0" else At(keys.queue, _LINES, lines=next_cursor)
            # A server may list the lines of a page in another order the next time, so this sorts them.
            places = [place for place in sorted(map(line_place, lines)) if place >= at.place]
            yield from self._in_places(keys, places, at, next_page, cursor)
            at, cursor = next_page, next_cursor
            if cursor == "0":
                return

    def _in_places(
        self, keys: QueueKeys, places: Sequence[str], at: At, then: At, lines: str = "0"
    ) -> Finding[Page]:
        """Search these places, beginning at `at` if it is in one of them. Afterwards the search goes on at `then`."""
        done, cursor = (places.index(at.place), at.cursor) if at.place in places else (0, "")
        while done < len(places) and keys.queue not in self._left_out:
            began = clock.monotonic()
            step = yield from ask(find(keys, places[done:], self._criteria, cursor, most=self._most))
            hits, unreadable = yield from sure(keys, step, self._criteria)
            took = clock.monotonic() - began
            done, cursor = done + step.done, step.cursor
            self._count(keys, step, unreadable)
            self.at = At(keys.queue, places[done], cursor, lines) if done < len(places) else then
            yield Found(Page(keys, hits))
            yield from pause(took * PAUSES)

    def _count(self, keys: QueueKeys, step: Step, unreadable: int) -> None:
        self.looked += step.looked
        self.unreadable += step.unreadable + unreadable
        self.ahead += step.ahead
        if step.problem:
            self._note(keys.queue, ReplyError(step.problem))

    def _note(self, queue: str, error: Exception) -> None:
        if self.problem is not None:
            return
        self.problem = problem_of(self._app, queue, error)


def problem_of(app: App, queue: str, error: Exception) -> BrokerUnavailable:
    """The error about a queue that cannot be read."""
    reply = error if isinstance(error, ReplyError) else error.__cause__ or error
    found = diagnose(app.address, reply)
    problem = BrokerUnavailable(
        f"has a problem with queue {queue!r}: it {found.reason}",
        url=found.url,
        cure=found.cure,
        retriable=False,
    )
    problem.__cause__ = reply
    return problem


def read_filter(where: str | Query) -> Talk[Query]:
    """The filter, with times that count back from the server's clock, in the time zone of this process."""
    if isinstance(where, Query):
        return where
    now_ms = yield from ask(verbs.server.now())
    return parse(where, clock.from_ms(now_ms).astimezone())


def check_live(query: Query) -> None:
    """Raises InvalidFilter when the filter asks for jobs that have ended: no list has these."""
    ended = sorted(map(str, query.states & ENDED))
    if ended and not query.ids:
        raise InvalidFilter(
            f"state:{ended[0]} cannot be searched: jobs that have ended are in no list. Find one by its id, as "
            "in id:mail:order-17, or set history_url and use `fennelq history`"
        )


def jobs_found(app: App, query: Query, limit: int | None, progress: OnSearch | None) -> Finding[JobInfo]:
    """Yields the jobs that match the filter, each once, until there are `limit`. Raises BrokerUnavailable at the end
    when a place could not be searched."""
    if query.ids:
        yield from _by_ids(app, query.ids, limit)
        return
    check_live(query)
    search = Search(app, Criteria(query), most=min(limit or MOST_HITS, MOST_HITS))
    total, met = (yield from search.total()) if progress else 0, Met(query, limit)
    steps = Finds(search.pages())
    while not met.enough and (page := (yield from steps.next())) is not None:
        for some in pages(met.new(page), _RECORDS_AT_ONCE):
            for info in (yield from met.records(page.keys, some)):
                if not met.enough:
                    met.found += 1
                    yield Found(info)
        if progress:
            progress(SearchProgress(search.looked, total, met.found, search.unreadable + met.unreadable))
    if search.problem is not None:
        raise search.problem


def number_found(app: App, query: Query, progress: OnSearch | None) -> Talk[int]:
    """How many jobs match the filter."""
    if query.ids:
        found, number = Finds(_by_ids(app, query.ids, None)), 0
        while (yield from found.next()) is not None:
            number += 1
        return number
    check_live(query)
    search, number = Search(app, Criteria(query)), 0
    total = (yield from search.total()) if progress else 0
    steps = Finds(search.pages())
    while (page := (yield from steps.next())) is not None:
        number += len(page.hits)
        if progress:
            progress(SearchProgress(search.looked, total, number, search.unreadable))
    if search.problem is not None:
        raise search.problem
    return number


def state_of(info: JobInfo) -> State | None:
    """The state of a job in the words of filters; None for a status that only a later version knows."""
    if info.status is Status.SENT and info.place == "line":
        return State.LIMITED
    return _STATES.get(info.status)


class Met:
    """The jobs that a search has met so far."""

    def __init__(self, query: Query, limit: int | None) -> None:
        self._states, self._limit = query.states, limit
        self._ids: set[tuple[str, str]] = set()
        self.found = self.unreadable = 0

    @property
    def enough(self) -> bool:
        """Whether there are as many as the limit."""
        return self._limit is not None and self.found >= self._limit

    def new(self, page: Page) -> list[Hit]:
        """The hits that are new. The search may find a job again that has moved on meanwhile."""
        hits = [hit for hit in page.hits if (page.keys.queue, hit.key) not in self._ids]
        # An export has no limit, and a million ids would take a lot of memory: it may contain a job twice.
        if self._limit is not None:
            self._ids.update((page.keys.queue, hit.key) for hit in hits)
        return hits

    def records(self, keys: QueueKeys, hits: Sequence[Hit]) -> Talk[list[JobInfo]]:
        """The jobs that still exist and are still in a state that the filter asks for. It skips a record that cannot be
        read."""
        replies: Replies = yield [verbs.jobs.record(keys, hit.key) for hit in hits]
        infos: list[JobInfo] = []
        for reply in replies:
            if isinstance(reply, BrokerUnavailable):
                raise reply
            self.unreadable += isinstance(reply, Exception)
            if isinstance(reply, JobInfo) and state_of(reply) in self._states:
                infos.append(reply)
        return (yield from together(with_due(keys, info) for info in infos))


def _by_ids(app: App, ids: Sequence[str], limit: int | None) -> Finding[JobInfo]:
    for job_id in ids[:limit]:
        queue, key = split_id(job_id)
        keys = queue_keys(app.namespace, queue)
        info = yield from ask(verbs.jobs.record(keys, key))
        if info is not None:
            yield Found((yield from with_due(keys, info)))


def _queues(app: App, query: Query) -> Talk[list[str]]:
    wanted, excluded = query.values("queue"), query.values("queue", excluded=True)
    known: Any = wanted or (yield from queues_of(app))
    return sorted(set(known) - set(excluded))
