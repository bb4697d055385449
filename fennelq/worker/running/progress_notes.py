"""Writes the progress that running jobs report: at most four times a second per job, and always the newest.

A report only stores a value, so a task may report a thousand times a second. The first report of a job is written at
once. All jobs of an executor share the calls. A call that fails is repeated with the newest values, and never fails a
job: progress is the least important thing that an executor writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import starmap

from fennelq.broker import verbs
from fennelq.broker.dispatch import by_queues, pages
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Talk, ask
from fennelq.broker.trouble import classify
from fennelq.broker.verbs.runs import Report, Settled
from fennelq.loops import running_loop
from fennelq.model.progress import Progress, to_wire
from fennelq.worker.bus import LeasesLost
from fennelq.worker.outage import LogThrottle
from fennelq.worker.running.held import Held, Token
from fennelq.worker.state import State

INTERVAL = 0.25
"""Seconds between two writes for one job."""
AFTER_ERROR = 1.0
"""Seconds until a write that has failed is tried again."""
_LOST = 0


class Notes:
    """The progress of the jobs that an executor runs."""

    def __init__(self, state: State) -> None:
        self._app, self._broker, self._bus, self._held = state.namespace, state.broker, state.bus, state.held
        self.open: dict[Token, _Note] = {}
        """The runs that have reported progress and have no outcome yet."""
        self._due: list[_Note] = []
        self._writing: asyncio.Task[None] | None = None
        self._log = LogThrottle("progress", state.outage)
        state.bus.subscribe(LeasesLost, self._forget)

    def report(self, held: Held, progress: Progress) -> bool:
        """Write this progress soon, unless a newer one replaces it. Returns whether a write is due now: then the caller
        should give the loop a turn. Threads may call it as well; it never raises."""
        token = held.delivery.token
        note = self.open.get(token)
        if note is None:
            if held.task is None or not held.running or self._held.by_token.get(token) is not held:
                # The run is over, or another executor has the job, and code of the run goes on nevertheless.
                return False
            note = self.open.setdefault(token, _Note(held, held.task.get_loop()))
        note.newest = progress
        if note.scheduled:
            return False
        note.scheduled = True
        if running_loop() is note.loop:
            return self._schedule(note)
        with suppress(RuntimeError):  # the loop is closed: this thread has outlived its executor
            note.loop.call_soon_threadsafe(self._schedule, note)
        return False

    def last_of(self, page: Iterable[Settled]) -> list[Report]:
        """The reports of these runs that are not known to be written. The runs are over, so nothing more is written for
        them by itself: write these before the outcomes."""
        notes = [self.open.pop(settled.delivery.token, None) for settled in page]
        return [note.taken() for note in notes if note is not None and note.newest is not note.written]

    def write_last(self, keys: QueueKeys, reports: list[Report]) -> Talk[list[Report]]:
        """Write the last reports of runs; returns those for which a further attempt may help."""
        try:
            yield from ask(verbs.runs.note(keys, reports))
        except Exception as error:
            self._log.warn(error, queue=keys.queue)
            return reports if classify(error).passes else []
        return []

    def _forget(self, lost: LeasesLost) -> None:
        for token in lost.tokens:
            self.open.pop(token, None)

    def _schedule(self, note: _Note) -> bool:
        """Write this note now, or when its interval is over; returns whether it is now."""
        wait = note.not_before - note.loop.time()
        if wait > 0:
            note.loop.call_later(wait, self._schedule, note)
            return False
        self._due.append(note)
        # Other code may have cancelled every task of the loop. Then this one is done, and the next report, or the next
        # attempt of those that it was about to write, makes another, which writes the rest as well.
        if self._writing is None or self._writing.done():
            self._writing = self._started()
        return True

    def _started(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._write(), name="progress")

    async def _write(self) -> None:
        while self._due:
            due, self._due = self._due, []
            await self._write_those([note for note in due if self._goes_on(note)])

    def _goes_on(self, note: _Note) -> bool:
        """Whether the run may still write: not after its outcome, and not when its executor stops."""
        return self.open.get(note.held.delivery.token) is note and not note.held.stopped

    async def _write_those(self, notes: list[_Note]) -> None:
        for note in notes:
            note.scheduled = False
        unsent = {note.held.delivery.token: note for note in notes if note.newest is not note.sent}
        reports = by_queues([note.taken() for note in unsent.values()], _queue)
        calls = [
            (queue_keys(self._app, queue), page) for queue, every in reports.items() for page in pages(every)
        ]
        try:
            replies = await self._broker.run_each(list(starmap(verbs.runs.note, calls)))
            for (keys, page), reply in zip(calls, replies, strict=True):
                if isinstance(reply, BaseException):
                    self._log.warn(reply, queue=keys.queue)
                else:
                    self._answered([unsent.pop(report.delivery.token) for report in page], reply)
        finally:
            for note in unsent.values():
                self._again(note)

    def _answered(self, notes: Sequence[_Note], answers: Sequence[int]) -> None:
        self._log.over()
        for note in notes:
            note.written = note.sent
        lost = [
            note.held.delivery.token
            for note, answer in zip(notes, answers, strict=True)
            if answer == _LOST and self._goes_on(note)
        ]
        if lost:
            self._bus.publish(LeasesLost(lost))

    def _again(self, note: _Note) -> None:
        """The newest value is not written: try again a little later."""
        note.sent = note.written
        note.not_before = note.loop.time() + AFTER_ERROR
        note.scheduled = True
        self._schedule(note)


class _Note:
    """The progress of one run.

    Threads store the newest value and then look whether a write is scheduled. The loop takes that mark away and then
    reads the value. So no value is left behind: at worst a write is scheduled twice, and the second finds nothing new.
    """

    __slots__ = ("held", "loop", "newest", "not_before", "number", "scheduled", "sent", "written")

    def __init__(self, held: Held, loop: asyncio.AbstractEventLoop) -> None:
        self.held, self.loop = held, loop
        self.newest: Progress | None = None
        self.sent: Progress | None = None
        self.written: Progress | None = None
        """The last one that Redis has confirmed."""
        self.number = 0
        """How many were sent."""
        self.not_before = 0.0
        self.scheduled = False
        """A write is due, or will be when the interval is over."""

    def taken(self) -> Report:
        """The newest value, to be sent now."""
        self.not_before = self.loop.time() + INTERVAL
        self.number += 1
        self.sent = newest = self.newest
        assert newest is not None
        return Report(self.held.delivery, to_wire(self.held.delivery.fence, self.number, newest))


def _queue(report: Report) -> str:
    return report.delivery.queue
