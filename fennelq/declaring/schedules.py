"""The schedules that the code of an app declares. Workers write them to Redis when they start."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from fennelq.errors import ConfigurationError
from fennelq.model.schedule import Schedule, When, WireSchedule
from fennelq.model.units import Seconds
from fennelq.usage import job_given

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fennelq.model.job import AnyJob
    from fennelq.model.routes import Routes


class Declared:
    """The schedules of `@app.cron`, `@app.every`, `task.cron(…)` and `task.every(…)`."""

    def __init__(self) -> None:
        self._schedules: dict[str, WireSchedule] = {}
        self.schedules: Mapping[str, WireSchedule] = MappingProxyType(self._schedules)
        """By name."""
        self._routed: set[str] = set()
        """The schedules whose queue the routes of the app decide."""

    def add(
        self,
        job: AnyJob,
        *,
        name: str | None,
        cron: str | None,
        every: Seconds | None,
        when: When,
        routed: bool = False,
    ) -> Schedule:
        """Declare a schedule. Raises ConfigurationError, with the reason, when it is not valid. `routed`: neither the
        task nor the call names a queue."""
        sent = job_given("app.declared.add", job)
        schedule = WireSchedule.of(name or name_after(job.task), sent, cron=cron, every=every, when=when)
        known = self._schedules.get(schedule.name)
        if known is not None and known != schedule:
            raise ConfigurationError(
                f"schedule {schedule.name!r} is declared twice: give one of them another name="
            )
        self._schedules[schedule.name] = schedule
        if routed:
            self._routed.add(schedule.name)
        return schedule

    def follow(self, routes: Routes) -> None:
        """Give the schedules the queues of these routes, which may have been added after the schedules."""
        for name in self._routed:
            schedule = self._schedules[name]
            queue = routes.queue_of(schedule.task)
            if queue != schedule.queue:
                self._schedules[name] = replace(schedule, queue=queue)


def name_after(task: str) -> str:
    """The default name of a schedule: that of its task."""
    return task.replace(":", ".").replace("<", "_").replace(">", "_")[-100:]
