"""`fennelq job`: look at one job, wait for it, cancel it, run it again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import typer

from fennelq.cli import output
from fennelq.cli.exits import Exit, Interrupted
from fennelq.cli.helps import Command, Group
from fennelq.cli.known import no_record, tell_unknown
from fennelq.cli.options import AppDir, AppPath, JobId, JobIds, Json, Timeout
from fennelq.cli.progress import Steps
from fennelq.cli.session import found, with_app
from fennelq.cli.table import Column
from fennelq.errors import JobError, ResultExpired
from fennelq.model.job import Event, JobInfo, Status

if TYPE_CHECKING:
    from fennelq.app import App

commands = typer.Typer(
    cls=Group, no_args_is_help=True, help="One job: look at it, wait for it, cancel it, retry it."
)

_EVENT_COLUMNS = (
    Column("at"),
    Column("what"),
    Column("owner", least=10, end=True, leave=1),
    Column("begun", leave=2),
    Column("more", least=12),
)
_ANSWER_COLUMNS = (Column("id"), Column("answer", least=16))


@commands.command("show", cls=Command)
def show(job: JobId, app: AppPath = None, app_dir: AppDir = None, as_json: Json = False) -> None:
    """Everything known about a job, and what happened to it: its tries, its executors, why it ran twice."""
    info, events = with_app(found(app, app_dir).app, lambda app: _known(app, job))
    if as_json:
        output.document({**output.of_job(info), "history": [output.of_event(event) for event in events]})
        return
    failure = info.error
    told: dict[str, object] = {
        **output.of_job(info),
        "arguments": output.text_of(info.arguments),
        "headers": output.record(info.headers) if info.headers else None,
        "error": failure.error_type if failure else None,
        "message": failure.message if failure else None,
    }
    output.facts(told)
    if failure and failure.traceback:
        print(f"\n{output.lines(failure.traceback)}")
    if events:
        print()
        output.table(_EVENT_COLUMNS, events)


@commands.command("wait", cls=Command)
def wait(
    job: JobId, app: AppPath = None, app_dir: AppDir = None, timeout: Timeout = None, as_json: Json = False
) -> None:
    """Wait until a job has ended, and print its result as JSON. Exits with 1 when it ended without one."""
    print_result(with_app(found(app, app_dir).app, lambda app: ended(app, job, timeout)), as_json=as_json)


@commands.command("cancel", cls=Command)
def cancel(jobs: JobIds, app: AppPath = None, app_dir: AppDir = None, as_json: Json = False) -> None:
    """Cancel jobs that have not started. Exits with 1 when one of them has."""
    _each(with_app(found(app, app_dir).app, lambda app: _cancel(app, jobs)), as_json=as_json)


@commands.command("retry", cls=Command)
def retry(jobs: JobIds, app: AppPath = None, app_dir: AppDir = None, as_json: Json = False) -> None:
    """Run dead jobs again, with a fresh budget of retries: `dlq replay` for single jobs."""
    _each(with_app(found(app, app_dir).app, lambda app: _retry(app, jobs)), as_json=as_json)


async def ended(app: App, job: str, timeout: float | None) -> dict[str, Any]:
    """How a job ended, in JSON values; raises ResultTimeout, or a Problem when nothing is known of it."""
    try:
        return {"id": job, "status": Status.SUCCESS, "result": await app.result(job).get(timeout)}
    except asyncio.CancelledError:  # which only Ctrl-C does here
        raise Interrupted(f"Interrupted: job {job} goes on; `fennelq job wait {job}` waits again.") from None
    except ResultExpired:
        if await app.client.info(job) is None:
            raise await no_record(app, job) from None
        raise
    except JobError as error:
        return {"id": job, "status": await app.result(job).status(), "error": str(error)}


def print_result(said: dict[str, Any], *, as_json: bool) -> None:
    """Print how a job ended; an end without a result exits with 1."""
    if as_json:
        output.document(said)
    elif "error" not in said:
        print(output.record(said["result"]))
    else:
        output.say(f"fennelq: {said['error']}")
    if "error" in said:
        raise typer.Exit(Exit.FAILED)


async def _known(app: App, job: str) -> tuple[JobInfo, list[Event]]:
    info, events = await app.client.info(job), await app.client.history(job)
    if info is None:
        raise await no_record(app, job)
    return info, events


Answer = tuple[str, Exit, str]


async def _cancel(app: App, jobs: list[str]) -> list[Answer]:
    return await _one_by_one(app, jobs, _cancel_one)


async def _cancel_one(app: App, job: str) -> Answer:
    if await app.result(job).cancel():
        return job, Exit.OK, "cancelled"
    status = await app.result(job).status()
    if status is Status.UNKNOWN:
        return job, Exit.NOT_FOUND, "unknown"
    return job, Exit.FAILED, f"too late: {status}"


async def _retry(app: App, jobs: list[str]) -> list[Answer]:
    return await _one_by_one(app, jobs, _retry_one)


async def _retry_one(app: App, job: str) -> Answer:
    report = await app.dlq.replay(ids=[job])
    if report.replayed:
        return job, Exit.OK, "replayed"
    if report.key_taken:
        return job, Exit.FAILED, "its idempotency key is taken by another job"
    if report.broken:
        return job, Exit.FAILED, "its record cannot be read"
    status = await app.result(job).status()
    if status is Status.UNKNOWN:
        return job, Exit.NOT_FOUND, "unknown"
    return job, Exit.FAILED, f"not dead: {status}"


async def _one_by_one(app: App, jobs: list[str], do: Callable[[App, str], Awaitable[Answer]]) -> list[Answer]:
    ids = list(dict.fromkeys(jobs))
    steps = Steps(len(ids))

    async def each() -> list[Answer]:
        answers: list[Answer] = []
        for job in ids:
            answers.append(await do(app, job))
            steps(len(answers))
        return answers

    answers = await steps.run(each())
    await tell_unknown(app, [job for job, code, _ in answers if code is Exit.NOT_FOUND])
    return answers


def _each(answers: list[Answer], *, as_json: bool) -> None:
    if as_json:
        output.document([{"id": job, "done": code is Exit.OK, "answer": text} for job, code, text in answers])
    else:
        output.table(_ANSWER_COLUMNS, [(job, text) for job, _, text in answers])
    raise typer.Exit(max(code for _, code, _ in answers))
