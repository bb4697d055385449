"""Queues: their numbers; pause, resume and empty one; the number of workers that they need."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from fennelq.errors import UnknownQueue
from fennelq.manage import documents
from fennelq.manage.queues.info import QueueInfo
from fennelq.model.pause import QueueSide
from fennelq.web.bulk import begin
from fennelq.web.http.call import Answer, Call
from fennelq.web.http.forms import Body, Query
from fennelq.web.http.operations import operation_document


async def list_queues(call: Call) -> Answer:
    """Every queue, with its numbers of jobs in each state, and its rates."""
    look = await call.look()
    return Answer(documents.of_snapshot(look.snapshot))


async def get_queue(call: Call) -> Answer:
    """One queue."""
    return Answer(documents.of_queue(await call.app.queues.info(call.names["queue"])))


class PauseBody(Body):
    """The pause of a queue."""

    only: QueueSide | None = None
    """`consume`: workers take no jobs. `enqueue`: callers create none. null: both."""
    why: str = Field(default="", max_length=200)
    """The reason, for others."""


async def pause_queue(call: Call) -> Answer:
    """Pause a queue."""
    form, name = call.given(PauseBody), call.names["queue"]
    shown = f"--only {form.only}" if form.only else ""
    async with call.site.recorded(call, "queue pause", target=name[:200], filter=shown) as record:
        pause = await call.app.queues.pause(name, only=form.only, why=form.why, who=call.who)
        record.ended(outcome=str(pause))
    return Answer(documents.of_pause(name, pause))


class ResumeBody(Body):
    """The end of a pause."""

    only: QueueSide | None = None
    """The side that is resumed; null is both."""


async def resume_queue(call: Call) -> Answer:
    """End the pause of a queue."""
    name, only = call.names["queue"], call.given(ResumeBody).only
    async with call.site.recorded(call, "queue resume", target=name[:200]) as record:
        before = await call.app.queues.resume(name, only=only)
        record.ended(outcome="resumed" if before else "was not paused", before=str(before or ""))
    return Answer(documents.of_pause(name, (await call.app.queues.info(name)).paused))


class PurgeBody(Body):
    """A purge."""

    dry_run: bool = False
    """Only count the jobs, and show some."""


async def purge_queue(call: Call) -> Answer:
    """Cancel all jobs of a queue that have not started. It goes on after the answer: follow the operation."""
    name = call.names["queue"]
    await call.app.queues.info(name)
    where = f"queue:{name} state:waiting state:limited state:scheduled state:retry"
    plan = await call.app.operations.plan("cancel", where)
    if call.given(PurgeBody).dry_run:
        return Answer({"count": plan.total, "where": plan.where, "until": plan.until})
    operation = await begin(call, plan, "queue purge", target=name, reason="purged")
    location = f"{call.request.scope.get('root_path', '')}/api/v1/operations/{operation.id}"
    return Answer(operation_document(call, operation), 202, {"Location": location})


class ScaleQuery(Query):
    """Which queues, and how many jobs a worker takes."""

    queue: str = Field(min_length=1, max_length=2000)
    """The name of a queue, or several with commas."""
    per: int = Field(default=10, ge=1, le=1_000_000)
    """Jobs per worker process."""
    least: int = Field(default=0, ge=0, le=1_000_000)
    """The fewest worker processes."""
    most: int = Field(default=100, ge=0, le=1_000_000)
    """The most worker processes."""


async def scale(call: Call) -> Answer:
    """The backlog of queues, and the number of workers that they need: for KEDA's metrics-api and similar scalers."""
    asked = call.asking(ScaleQuery)
    infos = [await call.app.queues.info(name) for name in dict.fromkeys(asked.queue.split(","))]
    return Answer(scaled(infos, asked))


def scaled(infos: list[QueueInfo], asked: ScaleQuery) -> dict[str, Any]:
    """The figures of a scaler."""
    if damaged := next((info for info in infos if info.damage), None):
        raise UnknownQueue(f"{damaged.name}: {damaged.damage}")
    waiting = sum(info.waiting + info.in_lines for info in infos)
    running = sum(info.running for info in infos)
    ages = [
        (info.at - info.waiting_since).total_seconds() for info in infos if info.at and info.waiting_since
    ]
    desired = math.ceil((waiting + running) / asked.per)
    return {
        "waiting": waiting,
        "running": running,
        "backlog": waiting + running,
        "oldest_seconds": round(max(0.0, *ages, 0.0), 3),
        "desired": max(asked.least, min(asked.most, desired)),
    }
