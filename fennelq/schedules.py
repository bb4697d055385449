"""Recurring jobs of an app: those its code declares, and those made at run time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from fennelq import clock
from fennelq.broker.keys import AppKeys
from fennelq.broker.verbs import schedule as verbs
from fennelq.errors import ConfigurationError, FennelqError, suggestion
from fennelq.model.job import AnyJob
from fennelq.model.options import Seconds
from fennelq.model.schedule import Schedule, When

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fennelq.app import App
    from fennelq.result import AsyncResult


class UnknownSchedule(FennelqError):
    """There is no schedule of this name."""

    def __init__(self, name: str, known: list[str]) -> None:
        self.name = name
        super().__init__(f"no schedule {name!r}{suggestion(name, known)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule and what has come of it."""

    schedule: Schedule
    declared: bool
    """True when the code declares it, False when it was made at run time."""
    paused: bool
    next_run: datetime | None
    last_run: datetime | None
    last_job: str | None
    run_count: int
    skipped: int
    """Ticks left out, because they were missed or the previous run had not ended."""
    last_error: str | None

    @property
    def name(self) -> str:
        """Its name."""
        return self.schedule.name


class Schedules:
    """The schedules of an app. Changes are in effect within a second, without a restart."""

    def __init__(self, app: App) -> None:
        self._app, self._keys = app, AppKeys(app.namespace)
        self._declared: dict[str, Schedule] = {}

    @property
    def declared(self) -> Mapping[str, Schedule]:
        """What the code declares; workers make it so in Redis when they start."""
        return MappingProxyType(self._declared)

    def declare(
        self, job: AnyJob, *, name: str | None, cron: str | None, every: Seconds | None, when: When
    ) -> Schedule:
        """Declare a schedule in code. Raises ConfigurationError, with the reason, when it makes no sense."""
        schedule = Schedule.of(name or _name_of(job.task), job, cron=cron, every=every, when=when)
        known = self._declared.get(schedule.name)
        if known is not None and known != schedule:
            raise ConfigurationError(
                f"schedule {schedule.name!r} is declared twice: give one of them another name="
            )
        self._declared[schedule.name] = schedule
        return schedule

    # At run time

    async def add(
        self,
        job: AnyJob,
        *,
        name: str | None = None,
        cron: str | None = None,
        every: Seconds | None = None,
        **when: Unpack[When],
    ) -> ScheduleInfo:
        """Make a schedule, or change the one of this name: `await app.schedules.add(report.job(7), every=60)`."""
        schedule = Schedule.of(name or _name_of(job.task), job, cron=cron, every=every, when=when)
        await self._change("put", schedule.name, schedule)
        return await self.get(schedule.name)

    async def pause(self, name: str) -> None:
        """No more runs, until it is resumed."""
        await self._change("pause", name)

    async def resume(self, name: str) -> None:
        """Runs again from its next tick on; what came due while it was paused is not made up for."""
        await self._change("resume", name, (await self.get(name)).schedule)

    async def remove(self, name: str) -> None:
        """Forget a schedule that was made at run time. One that the code declares can only be paused."""
        await self._change("remove", name)

    async def run(self, name: str) -> AsyncResult[Any]:
        """Run it once, now; its ticks stay what they are."""
        schedule = (await self.get(name)).schedule
        key = f"cron.{schedule.name}.now.{clock.wall_ms()}"
        job = verbs.job_of(schedule, key)
        return await self._app.client.send(job)

    async def get(self, name: str) -> ScheduleInfo:
        """One schedule; raises UnknownSchedule when there is none of this name."""
        client = self._app.client
        state = await client.ask(verbs.state(self._keys, name))
        if not state:
            raise UnknownSchedule(name, await client.ask(verbs.names(self._keys)))
        return _info(state)

    async def list(self) -> list[ScheduleInfo]:
        """Every schedule, by name."""
        client = self._app.client
        names = await client.ask(verbs.names(self._keys))
        states = [await client.ask(verbs.state(self._keys, name)) for name in names]
        return [_info(state) for state in states if state]

    async def _change(self, what: verbs.Change, name: str, schedule: Schedule | None = None) -> None:
        client = self._app.client
        definition, due = b"", None
        if schedule is not None:
            definition = schedule.to_wire()
            due = schedule.next_after(await client.ask(verbs.server_now()))
        answer = await client.run(verbs.change(self._keys, what, name, definition, due))
        if answer == 0:
            raise UnknownSchedule(name, await client.ask(verbs.names(self._keys)))
        if answer == -1:
            raise ConfigurationError(
                f"schedule {name!r} is declared in code: change it there (it can be paused here)"
            )


def _info(state: Mapping[str, bytes]) -> ScheduleInfo:
    said = {name: value.decode() for name, value in state.items() if name != "definition"}
    return ScheduleInfo(
        schedule=Schedule.from_wire(state["definition"]),
        declared=said.get("source") == "code",
        paused=said.get("paused") == "1",
        next_run=_moment(said.get("next")) if said.get("paused") != "1" else None,
        last_run=_moment(said.get("last_run")),
        last_job=said.get("last_job"),
        run_count=int(said.get("runs", 0)),
        skipped=int(said.get("skipped", 0)),
        last_error=said.get("last_error"),
    )


def _moment(ms: str | None) -> datetime | None:
    return clock.from_ms(int(ms)) if ms else None


def _name_of(task: str) -> str:
    """A schedule is named after its task, unless it is given a name."""
    return task.replace(":", ".").replace("<", "_").replace(">", "_")[-100:]
