"""Options that several commands share, and the parsers of their texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from fennelq.cli import complete
from fennelq.errors import ConfigurationError, InvalidJobId
from fennelq.model.checks import check_line, valid_name
from fennelq.model.job import Priority, split_id
from fennelq.model.units import duration_in


def duration(text: str) -> float:
    """Seconds: `60`, `90s`, `30m`, `1h30m`, `7d`."""
    seconds = duration_in(text)
    if seconds is None:
        raise typer.BadParameter(
            f"{text[:200]!r} is not a duration up to a century: write seconds, or 90s, 30m, 1h30m, 7d"
        )
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


def queue_option(sentence: str) -> Any:
    """The option `--queue` of a command; `sentence` says what the queue is for."""
    return typer.Option(
        "--queue",
        "-q",
        parser=queue_name,
        metavar="QUEUE",
        help=sentence,
        autocompletion=complete.queues,
    )


def one_line(text: str) -> str:
    """A text for people; may be empty."""
    try:
        if text:
            check_line("the text", text)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None
    return text


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
FollowStory = Annotated[
    bool,
    typer.Option("--follow", help="Print what happens to the job, and its progress, until it has ended."),
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
ToQueue = Annotated[Any, queue_option("The queue to send it to. Default: the task's.")]
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

Reason = Annotated[
    str,
    typer.Option(
        "--reason", metavar="REASON", help="The reason. The code of the job and its waiters can read it."
    ),
]

ToFile = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to this file. Default: stdout."),
]
WithSecrets = Annotated[
    bool,
    typer.Option(
        "--with-secrets",
        help="Also write secrets, which are hidden otherwise. `fennelq audit` records this.",
    ),
]
