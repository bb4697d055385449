"""The options of `fennelq worker`, which decide what a worker runs and what it logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, get_args

import typer

from fennelq.cli import complete
from fennelq.cli.options import duration, one_of, size
from fennelq.settings.settings import LogConfig, LogErrors, LogFormat, LogLevel


@dataclass(frozen=True)
class WorkerOptions:
    """How many executors run which jobs, and for how long."""

    processes: Annotated[
        int | None,
        typer.Option(
            "-p", "--processes", min=1, metavar="N", help="Executor processes. Default: one per CPU."
        ),
    ] = None
    concurrency: Annotated[
        int | None,
        typer.Option(
            "-c", "--concurrency", min=1, metavar="N", help="Jobs at a time in each process. Default: 32."
        ),
    ] = None
    queues: Annotated[
        str | None,
        typer.Option(
            "-q",
            "--queues",
            metavar="QUEUES",
            help="Queues to serve: `mail,default` in this order, or `mail:3,default:1` by weight. "
            "Default: every queue, with equal weight.",
            autocompletion=complete.queues,
        ),
    ] = None
    priority: Annotated[
        str | None,
        typer.Option("--priority", metavar="LANES", help="Only these lanes: high,normal. Default: all."),
    ] = None
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="PATTERN",
            help="Serve the queues of these tasks, like `shop.images.*`; no other task may use them. "
            "Default: the queues of -q.",
            autocompletion=complete.tasks,
        ),
    ] = None
    no_consume: Annotated[
        bool,
        typer.Option(
            "--no-consume",
            help="Run no jobs; only move due jobs, run schedules, recover jobs of dead executors.",
        ),
    ] = False
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            metavar="RATE",
            help="Take at most this many jobs in each process: 10/s, 600/m. Default: no limit.",
        ),
    ] = None
    burst: Annotated[bool, typer.Option("--burst", help="Stop when no job is left.")] = False
    grace: Annotated[
        float | None,
        typer.Option(
            "--grace",
            parser=duration,
            metavar="DURATION",
            help="How long jobs may continue after SIGTERM. Default: 25s.",
        ),
    ] = None
    max_jobs: Annotated[
        int | None,
        typer.Option(
            "--max-jobs",
            min=1,
            metavar="N",
            help="Replace an executor process after this many jobs. Default: never.",
        ),
    ] = None
    max_rss: Annotated[
        int | None,
        typer.Option(
            "--max-rss",
            parser=size,
            metavar="SIZE",
            help="Replace an executor process that uses more memory: 300M, 1G. Default: never.",
        ),
    ] = None
    health_port: Annotated[
        str | None,
        typer.Option(
            "--health-port",
            metavar="[HOST:]PORT",
            help="Reply to health checks at /live and /ready, and to Prometheus at /metrics. Default: no port.",
        ),
    ] = None
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart executors when a source file changes: for development.")
    ] = False
    force: Annotated[
        bool,
        typer.Option("--force", help="Start even if Redis may evict jobs, or if its version is too old."),
    ] = False


@dataclass(frozen=True)
class LogOptions:
    """The options of logging. Each defaults to the setting of the same name."""

    log_level: Annotated[
        Any,
        typer.Option(
            "--log-level",
            parser=one_of(LogLevel),
            metavar="LEVEL",
            help="debug, info, warning, error or critical. Default: info.",
            autocompletion=complete.words(*get_args(LogLevel)),
        ),
    ] = None
    log_format: Annotated[
        Any,
        typer.Option(
            "--log-format",
            parser=one_of(LogFormat),
            metavar="FORMAT",
            help="console, json or auto: console on a terminal, else json. Default: auto.",
            autocompletion=complete.words(*get_args(LogFormat)),
        ),
    ] = None
    log_errors: Annotated[
        Any,
        typer.Option(
            "--log-errors",
            parser=one_of(LogErrors),
            metavar="DETAIL",
            help="How much of a task's error to log: type, message or traceback. Default: traceback.",
        ),
    ] = None
    log_config: Annotated[
        Any,
        typer.Option(
            "--log-config",
            parser=one_of(LogConfig),
            metavar="CONFIG",
            help="fennelq, or none: your code configures logging. Default: fennelq.",
        ),
    ] = None
