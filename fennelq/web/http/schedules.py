"""Schedules: list them, make, change and remove those made at run time; pause, resume and run any."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from fennelq.manage import documents
from fennelq.manage.schedules import ScheduleInfo
from fennelq.manage.sending import Caller, GivenOptions, Where, described, read_call
from fennelq.web.http.call import Answer, Call
from fennelq.web.http.forms import Body, Instant, Line
from fennelq.web.http.jobs import without_arguments
from fennelq.web.http.sending import check_may_send


async def list_schedules(call: Call) -> Answer:
    """All schedules."""
    return Answer({"schedules": [_document(call, info) for info in await call.app.schedules.list()]})


async def get_schedule(call: Call) -> Answer:
    """One schedule."""
    return Answer(_document(call, await call.app.schedules.get(call.names["schedule"])))


class ScheduleBody(Body):
    """A schedule."""

    task: Line
    args: list[Any] = Field(default_factory=list[Any])
    kwargs: dict[str, Any] = Field(default_factory=dict[str, Any])
    options: GivenOptions | None = None
    """The options of its jobs."""
    cron: str | None = Field(default=None, max_length=200)
    """A cron expression; or `every`."""
    every: float | None = Field(default=None, gt=0)
    """Seconds between two runs."""
    tz: str | None = Field(default=None, max_length=100)
    """The time zone of the cron expression, by its IANA name."""
    overlap: Literal["allow", "skip", "queue"] | None = None
    catchup: str | None = Field(default=None, max_length=20)
    jitter: float | None = Field(default=None, ge=0)
    start: Instant | None = None
    end: Instant | None = None


async def put_schedule(call: Call) -> Answer:
    """Make a schedule, or change the one of this name."""
    form, name = call.given(ScheduleBody), call.names["schedule"]
    check_may_send(call, form.task)
    given = {"task": form.task, "args": form.args, "kwargs": form.kwargs}
    given |= {"options": form.options} if form.options is not None else {}
    read = read_call(given)
    await call.office.queues.check(read.get("options", {}).get("queue"), Where())
    job = described(call.app, read, Caller(call.user.name), Where(), identified=False).job
    names = ("tz", "overlap", "catchup", "jitter", "start", "end")
    when: Any = {one: value for one in names if (value := getattr(form, one)) is not None}
    async with call.site.recorded(call, "cron add", target=name[:200]) as record:
        info = await call.app.schedules.add(job, name=name, cron=form.cron, every=form.every, **when)
        record.ended(1)
    return Answer(_document(call, info))


async def delete_schedule(call: Call) -> Answer:
    """Remove a schedule that was made at run time."""
    await _change(call, "cron remove", call.app.schedules.remove)
    return Answer(None, 204)


async def pause_schedule(call: Call) -> Answer:
    """Pause a schedule: it creates no jobs until it is resumed."""
    return await _changed(call, "cron pause", call.app.schedules.pause)


async def resume_schedule(call: Call) -> Answer:
    """Resume a schedule."""
    return await _changed(call, "cron resume", call.app.schedules.resume)


async def run_schedule(call: Call) -> Answer:
    """Run a schedule once, now."""
    name = call.names["schedule"]
    async with call.site.recorded(call, "cron run", target=name[:200]) as record:
        job = await call.app.schedules.run(name)
        record.ended(1, f"sent {job.id}")
    return Answer({"id": job.id, "deduplicated": job.deduplicated}, 201)


async def _changed(call: Call, what: str, act: Callable[[str], Awaitable[None]]) -> Answer:
    await _change(call, what, act)
    return await get_schedule(call)


async def _change(call: Call, what: str, act: Callable[[str], Awaitable[None]]) -> None:
    name = call.names["schedule"]
    async with call.site.recorded(call, what, target=name[:200]) as record:
        await act(name)
        record.ended(1)


def _document(call: Call, info: ScheduleInfo) -> dict[str, Any]:
    return without_arguments(call, documents.of_schedule(info, datetime.now(UTC), call.redaction))
