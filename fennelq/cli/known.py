"""Checks that queues and jobs exist. The error for an unknown queue names the most similar known queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from fennelq.broker.dispatch import pages
from fennelq.cli import output
from fennelq.cli.exits import Exit, Problem
from fennelq.manage.dead.search import named
from fennelq.manage.queues.queues import queues_of
from fennelq.model.job import split_id
from fennelq.wording import suggestion

if TYPE_CHECKING:
    from fennelq.app import App

_ASKED_AT_ONCE: Final = 100


async def require_queues(app: App, queues: Iterable[str]) -> None:
    """Raises a Problem for the first queue that is neither the queue of a task nor known in Redis."""
    known = await app.client.converse(queues_of(app))
    for queue in queues:
        if queue not in known:
            raise Problem(f"queue {queue!r} does not exist{suggestion(queue, known)}", Exit.NOT_FOUND)


def queue_of_limit(app: App, name: str) -> str:
    """The queue of the tasks that have this limit. Raises a Problem when no task has it, and when those of several
    queues do."""
    having: set[str] = set()
    names: set[str] = set()
    for task in app.tasks.values():
        for definition in task.limits.definitions.values() if task.limits else ():
            names.add(definition.name)
            if definition.name == name or named(task.name, name, ":"):
                having.add(task.queue)
    if len(having) > 1:
        raise Problem(
            f"queues {', '.join(sorted(having))} have a limit {name!r}: add --queue with one of them",
            Exit.USAGE,
        )
    if not having:
        hint = suggestion(name, names)
        end = "" if hint.endswith("?") else "."
        raise Problem(
            f"no task has a limit {name[:200]!r}{hint}{end} For one that only Redis knows, add --queue",
            Exit.NOT_FOUND,
        )
    return having.pop()


def note_unknown_task(app: App, task: str | None) -> None:
    """Print on stderr that the app has no such task. It is not an error: jobs of a removed task may exist."""
    if task is not None and not any(named(name, task, ":") for name in app.tasks):
        output.note(f"fennelq: the app has no task {task!r}{suggestion(task, _names_like(task, app))}")


def _names_like(task: str, app: App) -> Iterable[str]:
    """The names of the tasks, without their modules if `task` has none."""
    return app.tasks if ":" in task else {name.rpartition(":")[2] for name in app.tasks}


async def no_record(app: App, job: str) -> Problem:
    """The Problem for a job that is unknown."""
    queue, _ = split_id(job)
    known = await app.client.converse(queues_of(app))
    if queue in known:
        return Problem(
            f"job {job} has no record: it was never sent, or it ended too long ago", Exit.NOT_FOUND
        )
    return Problem(
        f"job {job} has no record, and queue {queue!r} does not exist{suggestion(queue, known)}",
        Exit.NOT_FOUND,
    )


async def name_unknown(app: App, jobs: Iterable[str]) -> bool:
    """Print on stderr every job that has no record; returns whether any was printed."""
    ids = list(dict.fromkeys(jobs))
    unknown: list[str] = []
    for page in pages(ids, _ASKED_AT_ONCE):
        unknown += await _unknown(app, page)
    for job in unknown:
        output.note(f"fennelq: {await no_record(app, job)}")
    return bool(unknown)


async def _unknown(app: App, ids: Sequence[str]) -> list[str]:
    infos = await asyncio.gather(*map(app.client.info, ids))
    return [job for job, info in zip(ids, infos, strict=True) if info is None]
