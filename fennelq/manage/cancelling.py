"""Cancels the jobs that match filters: those that wait at once, and those that run by asking them to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fennelq.broker import verbs
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import STREAMS, QueueKeys, queue_keys
from fennelq.broker.talk import Finding, Finds, Found, Replies, Talk, ask
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import MOST_JOBS
from fennelq.broker.verbs.jobs import ASKED, CANCELLED, Outline
from fennelq.errors import BrokerUnavailable, ConfigurationError, a_kind_of
from fennelq.manage.queues import OnProgress, queues_of
from fennelq.manage.search import PAGE, named
from fennelq.model.checks import check_count, check_duration, check_reason, valid_name
from fennelq.model.job import Status
from fennelq.model.units import Seconds, milliseconds

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.task import AnyTask

_PLACES: Final[Mapping[str, Status]] = {"sched": Status.SCHEDULED, "retry": Status.RETRY}
"""The places besides the lanes. They are read first, because a due job moves from there to a lane."""
_IN_LANES: Final = frozenset({Status.SENT, Status.EXECUTING})
_CANCELLABLE: Final = frozenset({*_PLACES.values(), *_IN_LANES})

Page = list[str]
"""The keys of some jobs of a queue."""


class Selection(NamedTuple):
    """The jobs that match: of these queues (None: of all), of this task, with one of these statuses, of this age."""

    queues: Sequence[str] | None
    task: str | None
    statuses: frozenset[Status]
    older_than_ms: int

    @classmethod
    def of(
        cls,
        queue: str | Sequence[str] | None,
        task: str | AnyTask | None,
        status: Status | Sequence[Status] | None,
        older_than: Seconds | None,
    ) -> Selection:
        """These filters, checked."""
        queues = [queue] if isinstance(queue, str) else queue
        if older_than is not None:
            check_duration("older_than", older_than)
        return cls(
            None if queues is None else [valid_name("queue", name) for name in queues],
            _name_of(task),
            _CANCELLABLE if status is None else _statuses([status] if isinstance(status, str) else status),
            milliseconds(older_than or 0),
        )

    @property
    def everything(self) -> bool:
        """Whether every job of the app matches."""
        return self.queues is None and self.whole_queues

    @property
    def whole_queues(self) -> bool:
        """Whether every job of the queues matches, so that their records need not be read."""
        return self.task is None and self.statuses == _CANCELLABLE and not self.older_than_ms

    def meets(self, job: Outline, now_ms: int) -> bool:
        """Whether a job of one of these queues matches."""
        return (
            job.status in self.statuses
            and named(job.task, self.task, ":")
            and job.created_ms <= now_ms - self.older_than_ms
        )


class Cancelling:
    """Cancels the jobs that match, at most `limit`, for one caller."""

    def __init__(
        self,
        app: App,
        selection: Selection,
        *,
        limit: int | None = None,
        reason: str = "cancelled",
        everything: bool = False,
        progress: OnProgress | None = None,
    ) -> None:
        check_reason("reason", reason)
        if limit is not None:
            check_count("limit", limit)
        if selection.everything and not everything:
            raise ConfigurationError(
                "this cancels every job of the app: pass queue=, task=, status= or older_than=, or all=True"
            )
        self._app, self._selection, self._limit = app, selection, limit
        self._reason, self._progress = reason, progress
        self._done = 0

    def run(self) -> Talk[int]:
        """Cancel; returns how many jobs were cancelled or asked to stop. A queue that is damaged, or that the user of
        Redis may not change, does not stop the others: its error is raised at the end."""
        problem: Exception | None = None
        for queue in (yield from _queues(self._app, self._selection)):
            if self._is_enough:
                break
            try:
                yield from self._in_queue(queue)
            except (ReplyError, BrokerUnavailable) as error:
                if isinstance(error, BrokerUnavailable) and error.retriable:
                    raise
                problem = problem or error
        if problem is not None:
            raise problem
        return self._done

    def count(self) -> Talk[int]:
        """How many jobs `run` would cancel or ask to stop now."""
        count = 0
        for queue in (yield from _queues(self._app, self._selection)):
            found = Finds(_matching(self._app, queue, self._selection))
            while (page := (yield from found.next())) is not None:
                count += len(page)
        return count if self._limit is None else min(count, self._limit)

    @property
    def _is_enough(self) -> bool:
        return self._limit is not None and self._done >= self._limit

    def _in_queue(self, queue: str) -> Talk[None]:
        keys, found = (
            queue_keys(self._app.namespace, queue),
            Finds(_matching(self._app, queue, self._selection)),
        )
        while (page := (yield from found.next())) is not None:
            for part in pages(page, MOST_JOBS):
                chosen = part if self._limit is None else part[: self._limit - self._done]
                cancel = verbs.jobs.cancel(keys, chosen, self._app.lifetimes, self._reason)
                answers = yield from ask(cancel)
                self._done += sum(answer in (CANCELLED, ASKED) for answer in answers)
                if self._progress:
                    self._progress(self._done)
                if self._is_enough:
                    return


def _queues(app: App, selection: Selection) -> Talk[Sequence[str]]:
    if selection.queues is not None:
        return selection.queues
    return sorted((yield from queues_of(app)))


def _matching(app: App, queue: str, selection: Selection) -> Finding[Page]:
    """Yields the jobs of a queue that match, a page at a time."""
    keys, now_ms = queue_keys(app.namespace, queue), (yield from ask(verbs.server.now()))
    found = Finds(_members(keys, selection.statuses))
    while (page := (yield from found.next())) is not None:
        if not selection.whole_queues:
            page = yield from _chosen(keys, page, selection, now_ms)
        if page:
            yield Found(page)


def _chosen(keys: QueueKeys, page: Page, selection: Selection, now_ms: int) -> Talk[Page]:
    """The jobs of a page that match. A job whose record cannot be read does not."""
    replies: Replies = yield [verbs.jobs.in_outline(keys, key) for key in page]
    for reply in replies:
        if isinstance(reply, BrokerUnavailable):
            raise reply
    known = zip(page, replies, strict=True)
    return [key for key, job in known if isinstance(job, Outline) and selection.meets(job, now_ms)]


def _members(keys: QueueKeys, statuses: frozenset[Status]) -> Finding[Page]:
    """Yields the jobs of the places where jobs with one of these statuses are."""
    for place, status in _PLACES.items():
        if status in statuses:
            yield from _in_set(keys, place)
    if statuses & _IN_LANES:
        for lane in STREAMS:
            yield from _in_lane(keys, lane)


def _in_set(keys: QueueKeys, place: str) -> Finding[Page]:
    # By ZSCAN and not by rank: cancelled jobs leave the set, and all others would change their rank.
    cursor = "0"
    while True:
        cursor, members = yield from ask(verbs.queues.scan(keys, place, cursor, PAGE))
        if members:
            yield Found(members)
        if cursor == "0":
            return


def _in_lane(keys: QueueKeys, lane: str) -> Finding[Page]:
    """Not the jobs that arrive from now on: a lane that is written to all the time has no end."""
    last, at = (yield from ask(verbs.queues.last(keys, lane))), "0-0"
    while last and (page := (yield from ask(verbs.queues.waiting(keys, lane, at, PAGE, until=last)))):
        yield Found([entry.key for entry in page if entry.key])
        at = page[-1].entry


def _name_of(task: str | AnyTask | None) -> str | None:
    name: object = task if task is None or isinstance(task, str) else getattr(task, "name", task)
    if name is not None and not isinstance(name, str):
        raise ConfigurationError(f"task must be a task or its name, not {a_kind_of(task)}")
    return name


def _statuses(given: Sequence[Status]) -> frozenset[Status]:
    for status in given:
        if status not in _CANCELLABLE:
            known = ", ".join(sorted(_CANCELLABLE))
            raise ConfigurationError(
                f"jobs with status {str(status)!r:.100} cannot be cancelled, only {known}"
            )
    return frozenset(map(Status, given))
