"""The recurring jobs of an app: those that its code declares, and those made at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack, cast

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import AppKeys
from fennelq.broker.talk import Talk, ask, ask_all, together
from fennelq.declaring.schedules import name_after
from fennelq.errors import ConfigurationError, UnknownSchedule, UnreadableSchedule
from fennelq.loops import check_loop
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation
from fennelq.model.failure import last_failure
from fennelq.model.job import AnyJob, JobInfo, Status
from fennelq.model.schedule import Schedule, When, WireSchedule
from fennelq.model.units import Seconds
from fennelq.model.wire import AnyWireJob
from fennelq.result import AsyncResult, record_of
from fennelq.sync import sync
from fennelq.sync.sync import BlockingResult
from fennelq.usage import job_given

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fennelq.app import App

_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule, and the facts about its runs."""

    schedule: Schedule
    declared: bool
    """True when the code declares it, False when it was made at run time."""
    service: str | None
    """The service whose code declares it: module and name of its App, like `shop.tasks:shop`. None when it was made at
    run time, or declared by a version of fennelq that did not record services."""
    service_seen: datetime | None
    """When a worker of this service was last seen, to within a few seconds."""
    paused: bool
    next_run: datetime | None
    last_run: datetime | None
    last_job: str | None
    last_status: Status | None
    """The status of the last job; None when no job has run, or its record has expired."""
    run_count: int
    waiting: int
    """Runs that wait until the run before them has ended."""
    skipped: int
    """Ticks that were left out, because they were missed or the previous run had not ended."""
    last_error: str | None
    """The error of the last run that failed."""
    last_error_at: datetime | None
    error_count: int = 0
    """How many runs have failed so far."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.schedule.name


# Defined here, because inside the class `list` is a method.
Infos = list[ScheduleInfo]
Unreadable = list[UnreadableSchedule]
Known = tuple[Infos, Unreadable]


class ScheduleTalks(Family):
    """The operations on schedules."""

    _attribute = "schedules"

    @Operation
    def add(
        self,
        job: AnyJob,
        *,
        name: str | None = None,
        cron: str | None = None,
        every: Seconds | None = None,
        **when: Unpack[When],
    ) -> Talk[ScheduleInfo]:
        """Add a schedule, or change the schedule of this name: `schedules.add(report.job(7), every=60)`.

        Raises ConfigurationError when the schedule is not valid, or when the code declares one of this name. A paused
        schedule stays paused.
        """
        sent = job_given("app.schedules.add", job, ", cron=…")
        schedule = WireSchedule.of(name or name_after(job.task), sent, cron=cron, every=every, when=when)
        due = schedule.next_after((yield from ask(verbs.server.now())))
        yield from self._change("put", schedule.name, schedule.to_wire(), due)
        return (yield from self._get(schedule.name))

    @Operation
    def pause(self, name: str) -> Talk[None]:
        """Pause a schedule: it creates no jobs until it is resumed. Running jobs continue. This includes a schedule
        that the code declares."""
        yield from self._change("pause", name)

    @Operation
    def resume(self, name: str) -> Talk[None]:
        """Resume a paused schedule. Ticks that were due during the pause do not run."""
        info = yield from self._get(name)
        now = yield from ask(verbs.server.now())
        yield from self._change("resume", name, next_ms=info.schedule.next_after(now))

    @Operation
    def remove(self, name: str) -> Talk[None]:
        """Remove a schedule that was made at run time. A schedule that the code declares can be removed only when no
        worker of its service has been running for a minute; otherwise pause it."""
        yield from self._change("remove", name)

    @Operation
    def get(self, name: str) -> Talk[ScheduleInfo]:
        """One schedule; raises UnknownSchedule when no schedule has this name."""
        return (yield from self._get(name))

    @Operation
    def list(self) -> Talk[Infos]:
        """All schedules, sorted by name. A schedule that only a later version can read is left out, and logged."""
        infos, unreadable = yield from self._known()
        for error in unreadable:
            _log_unreadable(error)
        return infos

    @Operation
    def _begin_run(self, name: str) -> Talk[AnyWireJob]:
        """Record a run by hand; returns its job, which the caller sends."""
        info = yield from self._get(name)
        # Every schedule that is read from Redis is one with all that its jobs carry.
        job = verbs.schedules.job_by_hand(cast("WireSchedule", info.schedule))
        # Record the run first: a recorded run that is never sent does no harm.
        goes_on = info.last_status is not None and not info.last_status.ended
        yield from self._change("run", name, "" if goes_on else job.id)
        return job

    @property
    def _keys(self) -> AppKeys:
        return AppKeys(self._app.namespace)

    def _get(self, name: str) -> Talk[ScheduleInfo]:
        for info in (yield from self._infos([name])):
            if isinstance(info, UnreadableSchedule):
                raise info
            return info
        raise (yield from self._unknown(name))

    def _unknown(self, name: str) -> Talk[UnknownSchedule]:
        return UnknownSchedule(name, (yield from self._names()))

    def _known(self) -> Talk[Known]:
        infos, unreadable = Infos(), Unreadable()
        for page in pages((yield from self._names()), _PAGE):
            for info in (yield from self._infos(page)):
                if isinstance(info, UnreadableSchedule):
                    unreadable.append(info)
                else:
                    infos.append(info)
        return infos, unreadable

    def _names(self) -> Talk[Sequence[str]]:
        names, cursor = set[str](), ""
        while cursor != "0":
            cursor, page = yield from ask(verbs.schedules.names(self._keys, cursor or "0"))
            names.update(page)
        return sorted(names)

    def _infos(self, names: Sequence[str]) -> Talk[Sequence[ScheduleInfo | UnreadableSchedule]]:
        """The schedules of these names that exist, in a few round trips."""
        waiting = yield from ask(verbs.schedules.queued(self._keys, names))
        states = yield from ask_all(verbs.schedules.state(self._keys, name) for name in names)
        sources = {state.get("source", b"").decode() for state in states if state}
        seen = dict(zip(sources, (yield from together(map(self._seen, sources))), strict=True))
        infos = (
            self._info(name, state, len(waiting[name]), seen[state.get("source", b"").decode()])
            for name, state in zip(names, states, strict=True)
            if state
        )
        return (yield from together(infos))

    def _seen(self, source: str) -> Talk[datetime | None]:
        if not _is_of_code(source):
            return None
        seen = yield from ask(verbs.schedules.service_seen(self._keys, _service_of(source) or ""))
        return clock.from_ms(seen) if seen else None

    def _info(
        self, name: str, state: Mapping[str, bytes], waiting: int, service_seen: datetime | None
    ) -> Talk[ScheduleInfo | UnreadableSchedule]:
        try:
            schedule = WireSchedule.from_wire(state["definition"])
        except (ValueError, KeyError) as error:
            return UnreadableSchedule(name, str(error))
        last = state.get("last_job", b"").decode()
        job = (yield from record_of(self._app, last)) if last else None
        return _info_of(schedule, state, job, waiting, service_seen)

    def _change(
        self, what: verbs.schedules.Change, name: str, value: bytes | str = "", next_ms: int | None = None
    ) -> Talk[None]:
        answer = yield from ask(verbs.schedules.schedule(self._keys, what, name, value, next_ms))
        if answer == 0:
            raise (yield from self._unknown(name))
        if answer == -1:
            raise ConfigurationError(
                f"schedule {name!r} is declared in code: change it there "
                "(here it can be paused, and removed once no worker of its service has been running for a minute)"
            )


class Schedules(ScheduleTalks, Awaiting):
    """The schedules of an app. Changes take effect within a second, without a restart."""

    @property
    def declared(self) -> Mapping[str, Schedule]:
        """The schedules that the code declares. Workers write them to Redis when they start."""
        return self._app.declared.schedules

    async def run(self, name: str) -> AsyncResult[Any]:
        """Run a schedule once, now, even if it is paused. Its ticks do not change. `overlap` counts this run as
        well."""
        return await self._app.client.send(await self._begin_run(name))


class BlockingSchedules(ScheduleTalks, Blocking):
    """The schedules of an app, for code without an event loop: `app.sync.schedules`."""

    def run(self, name: str) -> BlockingResult[Any]:
        """Run a schedule once, now, even if it is paused. Its ticks do not change. `overlap` counts this run as
        well."""
        check_loop("app.sync.schedules.run", "await app.schedules.run(…)")
        return sync.enqueue(self._app, [self._begin_run(name)])[0]


def schedules_of(app: App) -> Talk[Known]:
    """All schedules, sorted by name, and the errors of those that only a later version can read."""
    return ScheduleTalks(app)._known()  # pyright: ignore[reportPrivateUsage]  # not a part of the public API


def names_of_schedules(app: App) -> Talk[Sequence[str]]:
    """The names of all schedules, sorted."""
    return ScheduleTalks(app)._names()  # pyright: ignore[reportPrivateUsage]  # not a part of the public API


def some_schedules(app: App, names: Sequence[str]) -> Talk[Mapping[str, ScheduleInfo | UnreadableSchedule]]:
    """Those of these schedules that exist."""
    found = yield from ScheduleTalks(app)._infos(names)  # pyright: ignore[reportPrivateUsage]
    return {one.name: one for one in found}


_MOST_DIGITS = 15
"""A time with as many digits is after the year 9999, which no datetime has."""


def has_workers(info: ScheduleInfo, now: datetime) -> bool:
    """Whether a worker of the service that declares it was running within the last minute. If none was, the schedule
    may be removed by hand."""
    seen = info.service_seen
    return seen is not None and abs((now - seen).total_seconds()) * 1000 < verbs.schedules.PATIENCE_MS


def _log_unreadable(error: UnreadableSchedule) -> None:
    from fennelq import log  # imported here, because most programs never log this

    log.get("fennelq.schedules").warning("schedule_unreadable", schedule=error.name, error=error.reason)


def _is_of_code(source: str) -> bool:
    """Whether a schedule of this source is declared in code."""
    return source == "code" or _service_of(source) is not None


def _service_of(source: str) -> str | None:
    """The service that declares schedules of this source."""
    return source.removeprefix("code:") if source.startswith("code:") else None


def _info_of(
    schedule: Schedule,
    state: Mapping[str, bytes],
    job: JobInfo | None,
    waiting: int,
    service_seen: datetime | None,
) -> ScheduleInfo:
    facts = {name: value.decode() for name, value in state.items() if name != "definition"}
    paused = facts.get("paused") == "1"
    error, error_ms = last_failure(job)
    # The next tick counts the last run. A run that has failed for good counts at once.
    died = job is not None and job.status is Status.DEAD and facts.get("last_job") != facts.get("failed_job")
    return ScheduleInfo(
        schedule=schedule,
        declared=_is_of_code(facts.get("source", "")),
        service=_service_of(facts.get("source", "")),
        service_seen=service_seen,
        paused=paused,
        next_run=None if paused else _moment(facts.get("next")),
        last_run=_moment(facts.get("last_run")),
        last_job=facts.get("last_job"),
        last_status=job.status if job is not None else None,
        run_count=_whole(facts.get("runs")) or 0,
        waiting=waiting,
        skipped=_whole(facts.get("skipped")) or 0,
        last_error=error or facts.get("last_error"),
        last_error_at=clock.from_ms(error_ms) if error_ms else _moment(facts.get("last_error_at")),
        error_count=(_whole(facts.get("errors")) or 0) + died,
    )


def _whole(number: str | None) -> int | None:
    """A number of a schedule; None when it is missing or damaged, which hides no other schedule."""
    return int(number) if number and number.isdecimal() and len(number) < _MOST_DIGITS else None


def _moment(ms: str | None) -> datetime | None:
    number = _whole(ms)
    return clock.from_ms(number) if number else None
