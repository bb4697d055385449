"""Options that several commands share, and the parsers of their texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from fennelq.cli import complete
from fennelq.errors import ConfigurationError, InvalidJobId
from fennelq.manage.cancelling import Selection
from fennelq.manage.search import Filters, Moment
from fennelq.model.checks import valid_name
from fennelq.model.job import Priority, Status, split_id

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST = 100 * 366 * 86400


def duration(text: str) -> float:
    """Seconds: `60`, `90s`, `30m`, `1h30m`, `7d`."""
    written = text.strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", written):
        seconds = float(written)
    elif written and not _PART.sub("", written):
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(written))
    else:
        raise typer.BadParameter(f"{text!r} is not a duration: write seconds, or 90s, 30m, 1h30m, 7d")
    if seconds > _LONGEST:
        raise typer.BadParameter(f"{text!r} is too long")
    return seconds


def size(text: str) -> int:
    """Bytes: `300M`, `1.5G`, `512K`, or a plain number."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)i?B?", text.strip(), re.IGNORECASE)
    if parts is None or float(parts[1]) == 0:
        raise typer.BadParameter(f"{text!r} is not a size: write 300M or 1G")
    return round(float(parts[1]) * 1024.0 ** " KMG".index(parts[2].upper() or " "))


def one_of(choices: Any) -> Callable[[str], str]:
    """A parser that accepts only the words of a Literal."""
    words: tuple[str, ...] = get_args(choices)

    def word(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(words)}")
        return text

    return word


def moment(text: str) -> datetime:
    """A date or a time in ISO 8601; local time when it contains no time zone."""
    try:
        read = datetime.fromisoformat(text.strip())
        return read if read.tzinfo else read.astimezone()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is not a point in time: write 2026-05-01 or 2026-05-01T14:30"
        ) from None


def ago(text: str) -> Moment:
    """A time before now, such as 2h, or a moment."""
    try:
        return timedelta(seconds=duration(text))
    except typer.BadParameter:
        return _moment_or_duration(text)


def _moment_or_duration(text: str) -> datetime:
    try:
        return moment(text)
    except typer.BadParameter:
        raise typer.BadParameter(f"{text!r} is neither a time before now (30m, 2h, 7d) nor a date") from None


def job_id(text: str) -> str:
    """The id of a job."""
    try:
        split_id(text)
    except InvalidJobId as error:
        raise typer.BadParameter(str(error)) from None
    return text


def queue_name(text: str) -> str:
    """The name of a queue."""
    try:
        return valid_name("queue", text)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None


def status(text: str) -> Status:
    """A status of a job that has not ended."""
    word = text.upper()
    going_on = [one for one in Status if not one.ended and one is not Status.UNKNOWN]
    if word not in going_on:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(going_on)}")
    return Status(word)


AppPath = Annotated[
    str | None,
    typer.Option(
        "-A",
        "--app",
        metavar="MODULE:APP",
        help="The app. Default: FENNELQ_APP, app in [tool.fennelq], or the one in app.py, tasks.py or main.py.",
    ),
]
AppDir = Annotated[
    Path | None,
    typer.Option(
        "--app-dir", metavar="FOLDER", help="The folder of the app's modules. Default: the current folder."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Follow = Annotated[
    bool,
    typer.Option("--follow", help="Show the progress that the task reports, until the job has ended."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print the number of jobs; change nothing.")]
Timeout = Annotated[
    Any,
    typer.Option(
        "--timeout",
        parser=duration,
        metavar="DURATION",
        help="Wait at most this long: 30s, 5m. Default: wait until the job has ended.",
    ),
]
JobId = Annotated[Any, typer.Argument(parser=job_id, metavar="ID", help="Id of the job.")]
JobIds = Annotated[list[Any], typer.Argument(parser=job_id, metavar="ID…", help="Ids of jobs.")]
QueueName = Annotated[
    Any,
    typer.Argument(
        parser=queue_name, metavar="QUEUE", help="Name of the queue.", autocompletion=complete.queues
    ),
]

TaskName = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="module:function, or only the function if exactly one task has this name.",
        autocompletion=complete.tasks,
    ),
]
CallArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ARGUMENT…]",
        help="JSON values; any other text is passed as text. Put -- before a negative number. Default: none.",
    ),
]
CallKeywords = Annotated[
    list[str] | None,
    typer.Option(
        "--kwargs",
        "-k",
        metavar="NAME=VALUE",
        help="A keyword argument, or a JSON object of several; repeatable. Default: none.",
    ),
]
ToQueue = Annotated[
    Any,
    typer.Option(
        "--queue",
        "-q",
        parser=queue_name,
        metavar="QUEUE",
        help="The queue to send it to. Default: the task's.",
        autocompletion=complete.queues,
    ),
]
ToLane = Annotated[
    Any,
    typer.Option(
        "--priority",
        parser=one_of(Priority),
        metavar="LANE",
        help="high, normal or low. Default: the task's.",
        autocompletion=complete.words(*get_args(Priority)),
    ),
]
Expires = Annotated[
    Any,
    typer.Option(
        "--expires",
        parser=duration,
        metavar="DURATION",
        help="Cancel the job if it has not started within this time: 10m, 2h. Default: the task's.",
    ),
]

SomeIds = Annotated[
    list[Any] | None,
    typer.Argument(
        parser=job_id, metavar="[ID…]", help="Ids of jobs. Default: those that the options select."
    ),
]
OlderThan = Annotated[
    Any,
    typer.Option(
        "--older-than",
        parser=duration,
        metavar="DURATION",
        help="Only jobs that were sent longer ago than this: 30m, 2h, 7d. Default: jobs of any age.",
    ),
]
OfStatus = Annotated[
    list[Any] | None,
    typer.Option(
        "--status",
        parser=status,
        metavar="STATUS",
        help="Only jobs with this status: SENT, SCHEDULED, EXECUTING or RETRY; repeatable. Default: all of these.",
        autocompletion=complete.words("SENT", "SCHEDULED", "EXECUTING", "RETRY"),
    ),
]
Reason = Annotated[
    str,
    typer.Option(
        "--reason", metavar="REASON", help="The reason. The code of the job and its waiters can read it."
    ),
]

DeadIds = Annotated[
    list[Any] | None,
    typer.Argument(parser=job_id, metavar="[ID…]", help="Only these jobs. Default: every dead job."),
]
InQueue = Annotated[
    list[Any] | None,
    typer.Option(
        "--queue",
        "-q",
        parser=queue_name,
        metavar="QUEUE",
        help="Only of this queue; repeatable. Default: every queue.",
        autocompletion=complete.queues,
    ),
]
OfTask = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="Only of this task: module:function, or function. Default: every task.",
        autocompletion=complete.tasks,
    ),
]
OfError = Annotated[
    str | None,
    typer.Option(
        "--error",
        metavar="TYPE",
        help="Only with this error: shop.CardRefused, or ValueError. Default: every error.",
    ),
]
Since = Annotated[
    Any,
    typer.Option(
        "--since",
        parser=ago,
        metavar="WHEN",
        help="Only jobs that died after this time: 30m, 2h, 7d (ago), or a date. Default: the first dead job.",
    ),
]
Until = Annotated[
    Any,
    typer.Option(
        "--until",
        parser=ago,
        metavar="WHEN",
        help="Only jobs that died before this time: 30m, 2h, 7d (ago), or a date. Default: now.",
    ),
]


@dataclass(frozen=True)
class Which:
    """The options that select dead jobs, for the commands of the family `dlq`."""

    queue: InQueue = None
    task: OfTask = None
    error: OfError = None
    since: Since = None
    until: Until = None

    def filters(self, ids: list[Any] | None = None) -> Filters:
        """The filters; empty when the command line contains none."""
        given = {"ids": ids, **vars(self)}
        return cast(
            "Filters", {name: value for name, value in given.items() if value is not None and value != []}
        )


@dataclass(frozen=True)
class WhichJobs:
    """The options that select jobs that have not ended."""

    queue: InQueue = None
    task: OfTask = None
    status: OfStatus = None
    older_than: OlderThan = None
    everything: Annotated[
        bool, typer.Option("--all", help="Every job of the app, if no other option selects jobs.")
    ] = False

    @property
    def given(self) -> bool:
        """Whether the command line selects jobs."""
        return any(value not in (None, [], False) for value in vars(self).values())

    def selection(self) -> Selection:
        """The filters."""
        return Selection.of(self.queue or None, self.task, self.status or None, self.older_than)
