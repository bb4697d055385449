"""What there is: executors, running jobs, tasks, health, and the record of operations."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import Field

from fennelq.manage import documents
from fennelq.manage.recorded import recorded_operations
from fennelq.web.http.call import Answer, Call
from fennelq.web.http.forms import Instant, Query
from fennelq.web.pages.health import checks_of


async def list_executors(call: Call) -> Answer:
    """The executors, as they have reported themselves."""
    look = await call.look()
    return Answer({"executors": [documents.of_executor(one) for one in look.executors.values()]})


class RunningQuery(Query):
    """Which running jobs."""

    queue: str | None = Field(default=None, max_length=128)
    """Only those of this queue."""
    limit: int = Field(default=100, ge=1, le=500)
    """The most jobs: those that have run longest."""


async def list_running(call: Call) -> Answer:
    """The jobs that run now, the longest first."""
    asked = call.asking(RunningQuery)
    found = await call.app.queues.running(asked.queue, limit=asked.limit)
    return Answer({"running": [documents.of_running(job) for job in found]})


async def list_tasks(call: Call) -> Answer:
    """The tasks that this user may send, and how long their runs take."""
    times = {one.task: documents.of_task_times(one) for one in await (await call.look()).times()}
    names = {*call.app.tasks, *times}
    return Answer({"tasks": [_task(call, name, times.get(name)) for name in sorted(names)]})


def _task(call: Call, name: str, times: dict[str, Any] | None) -> dict[str, Any]:
    task = call.app.tasks.get(name)
    known: dict[str, Any] = {"task": name, "may_send": call.user.can_send(name)}
    if task is not None:
        doc = inspect.getdoc(task.function) or ""
        known |= {"queue": task.queue, "parameters": task.calls.parameters, "description": doc}
    return known | {"run": times and times["run"], "wait": times and times["wait"]}


async def health(call: Call) -> Answer:
    """The checks of the dashboard's page Health: 200 when all pass, and 503 when one fails."""
    checks = await checks_of(await call.look())
    healthy = all(one.is_fine for one in checks)
    value = {
        "healthy": healthy,
        "checks": [{"name": one.name, "fine": one.is_fine, "text": one.text} for one in checks],
    }
    return Answer(value, 200 if healthy else 503)


class AuditQuery(Query):
    """Which operations."""

    limit: int = Field(default=100, ge=1, le=1000)
    """The most operations, the newest first."""
    since: Instant | None = None
    """Not older than this moment."""
    until: Instant | None = None
    """Not newer than this moment."""
    who: str | None = Field(default=None, max_length=500)
    """Those of this user, or of this host."""
    what: str | None = Field(default=None, max_length=100)
    """Operations whose name begins with these words."""


async def audit(call: Call) -> Answer:
    """What was changed, by whom, from where, and how it ended."""
    asked = call.asking(AuditQuery)
    found = await recorded_operations(
        call.app, limit=asked.limit, since=asked.since, until=asked.until, who=asked.who, what=asked.what
    )
    missing = {"incomplete": found.problem} if found.problem else {}
    return Answer({"operations": [documents.of_operation(entry) for entry in found.entries], **missing})
