"""The queues of an app: counts and lists their jobs, pauses and empties a queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Talk, ask, ask_all, together
from fennelq.broker.trouble import lacks_permission
from fennelq.errors import BrokerUnavailable, UnknownQueue
from fennelq.executors import Executors
from fennelq.manage.choices import check_choice
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation
from fennelq.manage.queues.info import QueueInfo, damaged, info_of, unstarted
from fennelq.manage.queues.pausing import paused, resumed
from fennelq.manage.running import RunningJob, first_of, longest
from fennelq.model.checks import valid_name
from fennelq.model.job import JobInfo
from fennelq.model.pause import QueuePause, QueueSide
from fennelq.result import record_of
from fennelq.waiting.reasons import executors_of

if TYPE_CHECKING:
    from fennelq.app import App

_PURGED_AT_ONCE = 100
_LINES_AT_ONCE = 20
QUEUES_AT_ONCE = 50
"""Queues per round trip. Each takes the server some 20 µs; more at once would make its other clients wait."""

OnProgress = Callable[[int], None]
"""Called from time to time with the number of finished items."""
Place = Literal["waiting", "scheduled", "retry", "line"]
"""Where jobs wait: in the lanes, for their time, for their next try, or in lines."""


# Defined here, because inside the class `list` is a method.
Names = list[str]
Infos = list[QueueInfo]
Running = list[RunningJob]
JobInfos = list[JobInfo]


class QueueTalks(Family):
    """The operations on queues."""

    _attribute = "queues"

    @Operation
    def names(self) -> Talk[Names]:
        """The names of all queues, sorted."""
        return sorted((yield from queues_of(self._app)))

    @Operation
    def info(self, queue: str) -> Talk[QueueInfo]:
        """The numbers of jobs in one queue, by state."""
        return (yield from _info_of(self._app, queue, (yield from executors_of(self._app.namespace))))

    @Operation
    def list(self) -> Talk[Infos]:
        """The numbers of jobs in every queue, by state; sorted by name."""
        return (yield from infos_of(self._app, (yield from executors_of(self._app.namespace))))

    @Operation
    def peek(self, queue: str, limit: int = 10, place: Place = "waiting") -> Talk[JobInfos]:
        """The next jobs of a queue, in the order in which workers will take them. They stay in the queue. With place
        `line`, the jobs of each line in their order, and the lines in any order."""
        check_choice("place", place, Place)
        keys = self._keys(queue)
        if place in ("scheduled", "retry"):
            return (yield from _due(self._app, keys, "sched" if place == "scheduled" else "retry", limit))
        found = yield from (_waiting if place == "waiting" else _in_lines)(keys, limit)
        jobs = yield from together(record_of(self._app, f"{queue}:{key}") for key in found)
        return [job for job in jobs if job is not None]

    @Operation
    def running(self, queue: str | None = None, *, limit: int | None = 100) -> Talk[Running]:
        """The jobs that run in one queue, or in all queues, those that run longest first; `limit=None` returns all. It
        leaves out queues that the user of Redis may not read, unless one is named."""
        names = (yield from self._busy()) if queue is None else [queue]
        found: Running = []
        for name in names:
            found = first_of([*found, *(yield from longest(self._keys(name), limit))], limit)
        return found

    @Operation
    def purge(self, queue: str, progress: OnProgress | None = None) -> Talk[int]:
        """Cancel the jobs that wait, also in lines, are scheduled, or wait for their next try; returns how many.

        Running jobs go on. It cancels at most as many jobs as waited at the beginning, even if more are sent meanwhile.
        """
        keys = self._keys(queue)
        before = yield from _info_of(self._app, queue, None)
        purged, most = 0, unstarted(before)
        while purged < most:
            page = yield from ask(verbs.queues.purge(keys, self._app.lifetimes, _PURGED_AT_ONCE))
            if not page:
                break
            purged += page
            if progress:
                progress(purged)
        return purged

    @Operation
    def pause(
        self, queue: str, *, only: QueueSide | None = None, why: str = "", who: str | None = None
    ) -> Talk[QueuePause]:
        """Pause a queue: executors start none of its jobs, and callers that send jobs to it get a QueuePaused.

        With `only="consume"`, callers may send; with `only="enqueue"`, executors go on. Running jobs go on. Retries,
        replays, due jobs, and jobs that fennelq itself sends, such as those of schedules, enter the queue in any case.
        A further pause adds to this one. `who` is the user and the host by default. Raises UnknownQueue.
        """
        yield from self._check_known(queue)
        return (yield from paused(self._keys(queue), only, why, who))

    @Operation
    def resume(self, queue: str, *, only: QueueSide | None = None) -> Talk[QueuePause | None]:
        """End the pause of a queue, or only that of one side, and wake its executors. Returns what was paused; None
        when nothing was. Raises UnknownQueue."""
        yield from self._check_known(queue)
        return (yield from resumed(self._keys(queue), only))

    def _check_known(self, queue: str) -> Talk[None]:
        known = yield from queues_of(self._app)
        if valid_name("queue", queue) not in known:
            raise UnknownQueue(queue, known)

    def _busy(self) -> Talk[Names]:
        """The queues that have running jobs, and those whose jobs are not counted because a key is damaged."""
        infos = yield from infos_of(self._app, None)
        return [info.name for info in infos if info.running or (info.damage and not info.unknown)]

    def _keys(self, queue: str) -> QueueKeys:
        return queue_keys(self._app.namespace, valid_name("queue", queue))


class Queues(QueueTalks, Awaiting):
    """The queues of an app: those of its tasks, and all that are known in Redis."""


class BlockingQueues(QueueTalks, Blocking):
    """The queues of an app, for code without an event loop: `app.sync.queues`."""


def queues_of(app: App) -> Talk[set[str]]:
    """The queues of the app's tasks, its default queue, and all queues that it has ever used."""
    known = yield from ask(verbs.queues.known_queues(app.namespace))
    return {app.settings.default_queue, *(task.queue for task in app.tasks.values()), *known}


def infos_of(app: App, executors: Executors | None) -> Talk[Infos]:
    """The numbers of jobs in every queue, sorted by name."""
    names = sorted((yield from queues_of(app)))
    infos: Infos = []
    for page in pages(names, QUEUES_AT_ONCE):
        infos += yield from together(_unless_denied(app, name, executors) for name in page)
    return infos


def _unless_denied(app: App, queue: str, executors: Executors | None) -> Talk[QueueInfo]:
    """The numbers of one queue of several. For a queue that the user of Redis may not read, they are replaced by the
    error, so that the others are shown."""
    try:
        return (yield from _info_of(app, queue, executors))
    except BrokerUnavailable as error:
        if not lacks_permission(error):
            raise
        return damaged(queue, f"Redis {error.reason}", unknown=True)


def _info_of(app: App, queue: str, executors: Executors | None) -> Talk[QueueInfo]:
    keys = queue_keys(app.namespace, valid_name("queue", queue))
    survey = yield from ask(verbs.survey.survey(keys))
    return info_of(queue, survey, app.bounds.of(queue), executors)


def _waiting(keys: QueueKeys, limit: int) -> Talk[list[str]]:
    """The keys of the next jobs, lane by lane in the order in which they are read."""
    found: list[str] = []
    survey = yield from ask(verbs.survey.survey(keys))
    for name, lane in survey.lanes.items():
        if lane.waiting and len(found) < limit:
            page = verbs.queues.waiting(keys, name, lane.last, limit - len(found))
            found += [entry.key for entry in (yield from ask(page))]
    return found


def _due(app: App, keys: QueueKeys, place: str, limit: int) -> Talk[JobInfos]:
    """The jobs that are due next. Their times are known from the list, so each needs one command for its record."""
    due = yield from ask(verbs.queues.due(keys, place, limit))
    records = yield from ask_all(verbs.jobs.record(keys, job.key) for job in due)
    return [
        replace(info, due_at=clock.from_ms(job.due_ms)) if info.place == place else info
        for job, info in zip(due, records, strict=True)
        if info is not None
    ]


def _in_lines(keys: QueueKeys, limit: int) -> Talk[list[str]]:
    """The keys of the first jobs of some lines, at most `limit`."""
    found: list[str] = []
    cursor = "0"
    while len(found) < limit:
        cursor, lines = yield from ask(verbs.lines.scan(keys, cursor, _LINES_AT_ONCE))
        for jobs in (yield from ask_all(verbs.lines.jobs(keys, line, limit) for line in sorted(lines))):
            found += jobs
        if cursor == "0":
            break
    return found[:limit]
