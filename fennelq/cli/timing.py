"""Options that decide when a schedule is due: those of `cron add`, and `--tz`, which `cron next` has as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, cast

import typer

from fennelq.cli import complete
from fennelq.cli.calls import only_given
from fennelq.cli.options import duration, moment
from fennelq.model.schedule import When

Zone = Annotated[
    str, typer.Option("--tz", metavar="ZONE", help="Time zone of the expression: Europe/Paris. Default: UTC.")
]


@dataclass(frozen=True)
class Timing:
    """The options that decide when a schedule is due, and what to do when the previous run has not ended."""

    cron: Annotated[
        str | None,
        typer.Option(
            "--cron",
            metavar="EXPR",
            help="minute hour day month weekday, or six fields with the seconds last, or @daily. "
            "Default: use --every.",
        ),
    ] = None
    every: Annotated[
        Any,
        typer.Option(
            "--every",
            parser=duration,
            metavar="DURATION",
            help="An interval: 30s, 5m, 1h. Default: use --cron.",
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the schedule. Default: the name of the task."),
    ] = None
    tz: Zone = "UTC"
    overlap: Annotated[
        str,
        typer.Option(
            "--overlap",
            metavar="HOW",
            help="If the previous run has not ended: allow, skip or queue.",
            autocompletion=complete.words("allow", "skip", "queue"),
        ),
    ] = "allow"
    catchup: Annotated[
        str,
        typer.Option(
            "--catchup",
            metavar="HOW",
            help="Which missed runs to start later, if no worker was running: none, last, all:N.",
            autocompletion=complete.words("none", "last", "all:"),
        ),
    ] = "none"
    jitter: Annotated[
        Any,
        typer.Option(
            "--jitter",
            parser=duration,
            metavar="DURATION",
            help="Delay each run by a random time up to this. Default: no delay.",
        ),
    ] = None
    start: Annotated[
        Any,
        typer.Option(
            "--start",
            parser=moment,
            metavar="MOMENT",
            help="No run before this (local) time: 2026-05-01. Default: no limit. Intervals are counted from "
            "this time, or without it from the epoch.",
        ),
    ] = None
    end: Annotated[
        Any,
        typer.Option(
            "--end",
            parser=moment,
            metavar="MOMENT",
            help="No run after this (local) time: 2026-05-01. Default: no limit.",
        ),
    ] = None

    def when(self) -> When:
        """All options except the times."""
        when = {"tz": self.tz, "overlap": self.overlap, "catchup": self.catchup}
        return cast("When", only_given({**when, "jitter": self.jitter, "start": self.start, "end": self.end}))
