"""`fennelq worker`: run jobs until a signal stops it; list the executors of all workers, ask one for its stacks, drain
one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fennelq.cli import output
from fennelq.cli.auditing import Outcome
from fennelq.cli.command import command, family_that_runs, given_options, itself
from fennelq.cli.consent import agree
from fennelq.cli.draining import followed
from fennelq.cli.exits import Exit, Interrupted, Problem
from fennelq.cli.options import Json, Yes, duration
from fennelq.cli.session import Session
from fennelq.cli.stacks_text import show_stacks
from fennelq.cli.tables.executors import show_executor, show_executors
from fennelq.cli.worker_options import LogOptions, WorkerOptions
from fennelq.errors import ConfigurationError, ExecutorUnavailable
from fennelq.manage.documents import of_executor, of_stacks
from fennelq.manage.executors.executors import grace_of
from fennelq.manage.executors.info import ExecutorInfo, ExecutorStacks

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.worker.processes.config import ExecutorConfig
    from fennelq.worker.processes.discovery import FoundApp

commands = family_that_runs()

_MOST_ASKED = 10
"""Executors that `stacks` asks without a name."""

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the executor, or the beginning of it: see `worker list`."),
]


def _grace(text: str) -> float:
    """A grace period."""
    try:
        return grace_of(duration(text))
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None


@itself(commands)
def run(context: typer.Context, session: Session, how: WorkerOptions, logs: LogOptions) -> None:
    """Run jobs until SIGTERM or Ctrl-C. A second signal stops the worker at once. Its subcommands look at the executors
    of all workers, or drain one."""
    from fennelq import log
    from fennelq.worker.processes import pid_one
    from fennelq.worker.processes.supervisor import serve

    if context.invoked_subcommand is not None:
        _check_order(context)
        log.setup(level="warning", at_once=False)
        return
    pid_one.end_on_sigterm()
    found = session.found
    config = _config(found, how, logs)
    log.setup(config.log_format, config.log_level, config=config.log_config, errors=config.log_errors)
    code = serve(
        found.app,
        config,
        processes=how.processes,
        health=how.health_port,
        reload=how.reload,
        force=how.force,
    )
    raise typer.Exit(code)


@command(commands, "list")
def list_executors(
    session: Session,
    every: Annotated[
        bool, typer.Option("--all", help="Also those that have ended within the last hour.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the executors of all workers: what they run now, and how late their event loops are.

    The list includes silent executors: those that have not reported for several seconds, and did not report
    their end."""
    known = session.run(lambda app: app.executors.list())
    shown = [one for one in known if every or not one.state.startswith("ended")]
    if as_json:
        output.document(list(map(of_executor, shown)))
        return
    show_executors(shown)
    if left := len(known) - len(shown):
        output.note(f"{output.counted(left, 'executor')} ended within the last hour: add --all.")


@command(commands, "show")
def show(session: Session, name: Name, as_json: Json = False) -> None:
    """Show everything that an executor has reported about itself."""
    executor = session.run(lambda app: app.executors.info(name))
    if as_json:
        output.document(of_executor(executor))
    else:
        show_executor(executor)


@command(commands, "stacks")
def stacks(
    session: Session,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="Name of an executor, or the beginning of it. Default: all executors, up to 10.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Print the stacks of the threads and asyncio tasks of an executor, and the job that each of them serves.

    A thread of the executor answers, so this works even while code blocks its event loop. The stacks contain files,
    lines and functions, but no values of variables.
    """
    found, failures = session.run(lambda app: _stacks(app, name))
    if as_json:
        output.document(list(map(of_stacks, found)))
    else:
        for one in found:
            show_stacks(one)
    for failure in failures:
        output.note(f"fennelq: {failure}")
    if failures:
        raise typer.Exit(Exit.FAILED)


@command(commands, "drain", changes=True)
def drain(
    session: Session,
    name: Name,
    replace: Annotated[
        bool, typer.Option("--replace", help="Let its worker start a new executor in its place.")
    ] = False,
    grace: Annotated[
        Any,
        typer.Option(
            "--grace",
            parser=_grace,
            metavar="DURATION",
            help="How long running jobs may continue: 10m. Default: the grace period of its worker.",
        ),
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return as soon as the executor has agreed.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Drain an executor: it takes no more jobs, finishes its running jobs and ends. Wait until it has ended.

    As after SIGTERM, running jobs get the grace period of the worker to finish; then the executor hands back those that
    still run. Its worker starts no new executor in its place, and ends when its last executor has ended. The command
    asks first; without a terminal it needs --yes.
    """
    executor = session.run(lambda app: app.executors.info(name))
    agree(_question(executor, replace=replace), yes=yes)
    running = session.change(
        lambda app: app.executors.drain(executor.name, replace=replace, grace=grace),
        outcome=lambda running: Outcome(text=f"{executor.name} drains: {running:,} jobs left"),
    )
    if not no_wait:
        try:
            session.run(lambda app: followed(app, executor.name, running))
        except KeyboardInterrupt:
            raise Interrupted(f"{executor.name} goes on draining: see `fennelq worker list`.") from None
    if as_json:
        output.document({"name": executor.name, "running": running, "ended": not no_wait})
    elif no_wait:
        output.line(f"{executor.name} drains: {output.counted(running, 'job')} left")
    else:
        output.line(f"{executor.name} is drained")


async def _stacks(app: App, name: str) -> tuple[list[ExecutorStacks], list[ExecutorUnavailable]]:
    """The stacks of one executor, or of all living ones; and why some did not answer."""
    if name:
        return [await app.executors.stacks(name)], []
    living = [one.name for one in await app.executors.list() if one.alive]
    if not living:
        raise Problem("no executor runs; start a worker with `fennelq worker`", Exit.FAILED)
    if len(living) > _MOST_ASKED:
        raise Problem(f"{len(living):,} executors run: add the name of one, see `worker list`", Exit.USAGE)
    answers = await asyncio.gather(*map(app.executors.stacks, living), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, ExecutorUnavailable):
            raise answer
    return (
        [one for one in answers if isinstance(one, ExecutorStacks)],
        [one for one in answers if isinstance(one, ExecutorUnavailable)],
    )


def _question(executor: ExecutorInfo, *, replace: bool) -> str:
    running = output.counted(executor.running or 0, "job")
    end = "A new executor takes its place" if replace else "No executor takes its place"
    return f"Drain {executor.name}, which runs {running} now? {end}."


def _check_order(context: typer.Context) -> None:
    """Raises UsageError for options before the name of the command, which would have no effect."""
    if given := given_options(context):
        word = context.invoked_subcommand
        raise typer.BadParameter(
            f"write {', '.join(given)} after the command: fennelq worker {word} {given[0]} …"
        )


def _config(found: FoundApp, how: WorkerOptions, logs: LogOptions) -> ExecutorConfig:
    from fennelq.model.limits import interval_of
    from fennelq.worker.processes.config import ExecutorConfig, lanes_of

    settings = found.app.settings
    _check_combination(how)
    return ExecutorConfig(
        app=found.path,
        folder=str(found.folder),
        log_format=logs.log_format or settings.log_format,
        log_level=logs.log_level or settings.log_level,
        log_errors=logs.log_errors or settings.log_errors,
        log_config=logs.log_config or settings.log_config,
        concurrency=how.concurrency or settings.concurrency,
        queues=how.queues,
        tasks=how.task,
        lanes=lanes_of(how.priority),
        consumes=not how.no_consume,
        rate=None if how.rate is None else 1e6 / interval_of(how.rate),
        burst=how.burst,
        grace=settings.grace_period if how.grace is None else how.grace,
        max_jobs=how.max_jobs,
        max_rss=how.max_rss,
        metrics=settings.metrics_by if how.health_port or settings.metrics else "",
    )


def _check_combination(how: WorkerOptions) -> None:
    """Raises ConfigurationError for options that would have no effect."""
    about_jobs = {
        "-c": how.concurrency,
        "--priority": how.priority,
        "--rate": how.rate,
        "--burst": how.burst,
        "--grace": how.grace,
        "--max-jobs": how.max_jobs,
        "--max-rss": how.max_rss,
    }
    given = [flag for flag, value in about_jobs.items() if value not in (None, False)]
    if how.no_consume and given:
        raise ConfigurationError(
            f"--no-consume takes no jobs, and {', '.join(given)} would have no effect: remove one of the two"
        )
