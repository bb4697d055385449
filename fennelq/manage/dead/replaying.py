"""Puts dead jobs back: all of them at a rate, or a few first, whose ends decide about the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys
from fennelq.broker.talk import Finding, Finds, Talk, ask, ask_all, pause
from fennelq.broker.verbs.dead import DeadJob
from fennelq.manage.dead.letter import ReplayReport
from fennelq.manage.dead.plan import Batch, ReplayPlan, selected_by
from fennelq.manage.dead.search import answers_of, dlq_entry, report_of, still_dead
from fennelq.manage.dead.selecting import Kinds, kinds_of
from fennelq.manage.pace import Pace
from fennelq.manage.queues.queues import OnProgress
from fennelq.model.checks import check_count, check_duration
from fennelq.model.job import JobInfo, Status
from fennelq.model.units import Seconds, seconds

if TYPE_CHECKING:
    from fennelq.app import App

_FIRST_LOOK = 0.1
_SECONDS_BETWEEN_LOOKS = 1.0


class Sent:
    """A job that was put back, and how it has ended."""

    def __init__(self, keys: QueueKeys, dead: DeadJob) -> None:
        self.keys, self.dead = keys, dead
        self.ended = False
        self.gone = False
        """Whether its record was removed before its end was seen."""
        self.died: DeadJob | None = None
        """Its new entry, when it has died again."""


class Replaying:
    """Puts the jobs of some batches back."""

    def __init__(self, batches: Finding[Batch], pace: Pace, progress: OnProgress | None) -> None:
        self._work, self._pace, self._progress = _Work(batches), pace, progress
        self.report = ReplayReport()

    def by(self, app: App, plan: ReplayPlan, canary: int | None, timeout: float) -> Talk[ReplayReport]:
        """Put the jobs of a plan back, a few first if `canary` is given."""
        selected = selected_by(plan)
        self.report = selected.left
        if canary is not None:
            kinds = yield from kinds_of(app, selected)
            if not (yield from self.first(canary, timeout, kinds)):
                return self.report
        yield from self.all()
        self.report = replace(self.report, stopped=plan.refused)
        return self.report

    def all(self) -> Talk[ReplayReport]:
        """Put all jobs back that are left."""
        while (batch := (yield from self._work.take(self._pace.most))) is not None:
            yield from self._send(batch)
        return self.report

    def first(self, number: int, timeout: float, kinds: Kinds) -> Talk[bool]:
        """Put this number of jobs back, and wait for their ends. Returns False when the others have to stay dead,
        because one of these has died as before, or has not ended in time."""
        sent: list[Sent] = []
        while len(sent) < number:
            batch = yield from self._work.take(min(number - len(sent), self._pace.most))
            if batch is None:
                break
            sent += yield from self._send_and_note(batch)
        if sent:
            yield from _wait_for_ends(sent, timeout)
        again = [one.died for one in sent if one.died and kinds.has(one.died)]
        late = [one for one in sent if not one.ended]
        anew = sum(one.died is not None for one in sent) - len(again)
        self.report = replace(self.report, died_anew=anew, stopped=why_stopped(sent, again, late, timeout))
        return not self.report.stopped

    def _send_and_note(self, batch: Batch) -> Talk[list[Sent]]:
        """Put jobs back; returns those that are back.

        After a lost reply, the repeated call answers that the jobs are not dead any more. So a job is back as well if
        it was dead just before the call, and is not afterwards."""
        keys, page = batch.keys, batch.page
        before = yield from still_dead(keys, page)
        answers = dict(zip(page, (yield from self._send(batch)), strict=True))
        unsure = [dead for dead in before if answers[dead] == 0]
        unmoved = yield from still_dead(keys, unsure)
        moved = {dead for dead in page if answers[dead] == 1} | set(unsure).difference(unmoved)
        return [Sent(keys, dead) for dead in page if dead in moved]

    def _send(self, batch: Batch) -> Talk[Sequence[int]]:
        yield from self._pace.wait_for(len(batch.page))
        answers = yield from answers_of(batch.keys, batch.page, batch.changes)
        self._pace.done()
        self.report += yield from report_of(batch.keys, batch.page, answers)
        if self._progress:
            self._progress(self.report.total)
        return answers


class _Work:
    """Cuts batches to the number of jobs that the next call may have."""

    def __init__(self, batches: Finding[Batch]) -> None:
        self._batches = Finds(batches)
        self._left: Batch | None = None

    def take(self, most: int) -> Talk[Batch | None]:
        """The next jobs, at most `most`; None at the end."""
        batch, self._left = self._left, None
        while batch is None or not batch.page:
            batch = yield from self._batches.next()
            if batch is None:
                return None
        if len(batch.page) > most:
            self._left = batch._replace(page=batch.page[most:])
        return _only(batch, batch.page[:most])


def _only(batch: Batch, page: list[DeadJob]) -> Batch:
    changes = {dead.entry: batch.changes[dead.entry] for dead in page if dead.entry in batch.changes}
    return Batch(batch.keys, page, changes)


def _wait_for_ends(sent: Sequence[Sent], timeout: float) -> Talk[None]:
    """Look at these jobs until all have ended, or the time is over."""
    deadline, between = clock.monotonic() + timeout, _FIRST_LOOK
    while going_on := [one for one in sent if not one.ended]:
        infos = yield from ask_all(verbs.jobs.outline(one.keys, one.dead.key) for one in going_on)
        yield from note_ends(zip(going_on, infos, strict=True))
        left = deadline - clock.monotonic()
        if left <= 0:
            return
        yield from pause(min(between, left))
        between = min(between * 2, _SECONDS_BETWEEN_LOOKS)


def note_ends(looks: Iterable[tuple[Sent, JobInfo | None]]) -> Talk[None]:
    """Note which of these jobs have ended, and how."""
    for one, info in looks:
        entry = dlq_entry(info)
        one.died = (yield from ask(verbs.dead.dead_entry(one.keys, entry))) if entry else None
        # A record is kept for ten minutes after a success: one that is gone between two looks was removed, as a purge
        # does it. The job has died, for all that is known.
        one.gone = info is None or info.status is Status.UNKNOWN
        # Without its entry, a dead job was purged or replayed since: the next look shows that.
        one.ended = one.gone or one.died is not None or (not entry and info is not None and info.status.ended)


def why_stopped(sent: Sequence[Sent], again: Sequence[DeadJob], late: Sequence[Sent], timeout: float) -> str:
    """Why the other jobs have to stay dead after these ends; empty when nothing speaks against their replay."""
    if again:
        died = again[0]
        return f"{len(again)} of {len(sent)} canary jobs died as before, {died.id} of {died.error_type}: {died.message}"
    if gone := [one for one in sent if one.gone]:
        job = gone[0].dead.id
        return (
            f"{len(gone)} of {len(sent)} canary jobs were removed before their ends were seen, {job} for one"
        )
    if late:
        return f"{len(late)} of {len(sent)} canary jobs have not ended within {timeout:g} s, {late[0].dead.id} for one"
    return ""


def checked_canary(number: int | None, timeout: Seconds) -> float:
    """The seconds to wait for the ends of so many jobs. Raises ConfigurationError when they make no sense."""
    if number is not None:
        check_count("canary", number)
    check_duration("canary_timeout", timeout)
    return seconds(timeout)
