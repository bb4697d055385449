"""Options that select jobs, and the parsers of their texts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, cast

import typer

from fennelq.broker.verbs.dead import OTHERS
from fennelq.cli import complete
from fennelq.cli.options import duration, job_id, moment, queue_option
from fennelq.manage.cancelling import Selection
from fennelq.manage.dead.search import Filters, Moment
from fennelq.model.fingerprint import is_fingerprint
from fennelq.model.job import Status
from fennelq.model.query import WORDS

_GOING_ON = [str(one) for one in Status if not one.ended and one is not Status.UNKNOWN]


def ago(text: str) -> Moment:
    """A time before now, such as 2h, or a moment."""
    try:
        return timedelta(seconds=duration(text))
    except typer.BadParameter:
        return _moment_or_duration(text)


def past(text: str) -> Moment:
    """The same, but not in the future."""
    moment = ago(text)
    if isinstance(moment, datetime) and moment > datetime.now(UTC):
        raise typer.BadParameter(f"{text!r} is in the future: write a time before now, such as 2h")
    return moment


def _moment_or_duration(text: str) -> datetime:
    try:
        return moment(text)
    except typer.BadParameter:
        raise typer.BadParameter(f"{text!r} is neither a time before now (30m, 2h, 7d) nor a date") from None


def fingerprint(text: str) -> str:
    """The fingerprint of a group of dead jobs."""
    if text != OTHERS and not is_fingerprint(text.lower()):
        raise typer.BadParameter(
            f"{text!r} is not a fingerprint: it has 8 hexadecimal digits, and `fennelq dlq list --group` shows it"
        )
    return text.lower()


def status(text: str) -> Status:
    """A status of a job that has not ended."""
    word = text.upper()
    if word not in _GOING_ON:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(_GOING_ON)}")
    return Status(word)


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
        help=f"Only jobs with this status: {', '.join(_GOING_ON)}; repeatable. Default: all of these.",
        autocompletion=complete.words(*_GOING_ON),
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="FILTER",
        help="Only jobs that match this filter: 'state:dead task:welcome since:2h \"no card\"'. Words: "
        f"{', '.join(WORDS)}; - before a word excludes. Default: no filter.",
    ),
]
DeadIds = Annotated[
    list[Any] | None,
    typer.Argument(parser=job_id, metavar="[ID…]", help="Only these jobs. Default: every dead job."),
]
InQueue = Annotated[
    list[Any] | None,
    queue_option("Only jobs of this queue; repeatable. Default: every queue."),
]
OfTask = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="Only jobs of this task: module:function, or function. Default: every task.",
        autocompletion=complete.tasks,
    ),
]
OfError = Annotated[
    str | None,
    typer.Option(
        "--error",
        metavar="TYPE",
        help="Only jobs with this error: shop.CardRefused, or ValueError. Default: every error.",
    ),
]
OfFingerprint = Annotated[
    str | None,
    typer.Option(
        "--fingerprint",
        parser=fingerprint,
        metavar="HEX",
        help="Only jobs of this group (see `dlq list --group`). Default: every group.",
    ),
]
Since = Annotated[
    Any,
    typer.Option(
        "--since",
        parser=past,
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


OfFilter = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="FILTER",
        help="Only jobs that match this filter: 'header:tenant=acme \"no card\"'. Words: "
        f"{', '.join(word for word in WORDS if word != 'state')}; - before a word excludes. Default: no filter.",
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
    fingerprint: OfFingerprint = None
    where: OfFilter = None

    def filters(self, ids: list[Any] | None = None) -> Filters:
        """The filters; empty when the command line contains none. A shell makes `--where "$FILTER"` empty when the
        variable is not set: that must not select every job."""
        if self.where is not None and not self.where.strip():
            raise typer.BadParameter(
                "an empty filter selects every dead job: write one, or leave out --where"
            )
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
    where: Where = None
    everything: Annotated[
        bool, typer.Option("--all", help="Every job of the app, if no other option selects jobs.")
    ] = False

    @property
    def given(self) -> bool:
        """Whether the command line selects jobs."""
        return bool(self.chosen)

    @property
    def chosen(self) -> list[str]:
        """The names of the options that the command line has."""
        return [name for name, value in vars(self).items() if value not in (None, [], False)]

    def selection(self) -> Selection:
        """The filters."""
        return Selection.of(
            self.queue or None, self.task, self.status or None, self.older_than, self.where or ""
        )
