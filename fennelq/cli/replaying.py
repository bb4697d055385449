"""The parts of `dlq replay`: new arguments, the plan, and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from fennelq.cli import output
from fennelq.cli.auditing import Outcome
from fennelq.cli.exits import Exit, Problem
from fennelq.cli.finding import named_dead
from fennelq.cli.known import name_unknown, note_unknown_task
from fennelq.cli.options import duration
from fennelq.cli.session import Session
from fennelq.cli.steps import Steps, progress
from fennelq.cli.tables.table import Column
from fennelq.manage.dead.new_arguments import NewArguments, Written
from fennelq.manage.documents import of_replay_plan, of_report, of_rewritten

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.dead.letter import DeadLetter, ReplayReport
    from fennelq.manage.dead.plan import ReplayPlan
    from fennelq.manage.dead.search import Filters
    from fennelq.model.named_call import Named

COLUMNS = (
    Column("died", leave=3),
    Column("id"),
    Column("task", least=12, end=True, leave=1),
    Column("error", least=12, end=True),
    Column("message", least=12, leave=2),
)
"""A dead job in a table."""
_REWRITTEN = (
    Column("died", leave=5),
    Column("id"),
    Column("task", least=12, end=True, leave=2),
    Column("error", least=12, end=True, leave=3),
    Column("message", least=16, leave=4),
    Column("old arguments", least=14),
    Column("new arguments", least=14),
)
"""A dead job that is to get new arguments. Only the arguments that change are shown: a cut text must not hide them."""

Anyway = Annotated[
    bool,
    typer.Option(
        "--anyway",
        help="Also change jobs whose tasks the app does not have. Nothing is checked; their limits and keys stay.",
    ),
]


PlanOnly = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only print how many jobs would be replayed, five examples, and how many cannot go back; change nothing.",
    ),
]


@dataclass(frozen=True)
class Canary:
    """A few jobs first."""

    canary: Annotated[
        int | None,
        typer.Option(
            "--canary",
            min=1,
            metavar="N",
            help="Replay N jobs first. If one dies as before, leave the others dead. Default: all at once.",
        ),
    ] = None
    canary_timeout: Annotated[
        Any,
        typer.Option(
            "--canary-timeout",
            parser=duration,
            metavar="DURATION",
            help="If a canary job has not ended within this time, leave the other jobs dead. Default: 60s.",
        ),
    ] = None

    @property
    def seconds(self) -> float:
        """The time to wait for their ends."""
        return 60.0 if self.canary_timeout is None else float(self.canary_timeout)


@dataclass(frozen=True)
class Arguments:
    """New arguments of the jobs."""

    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Replace this argument: a JSON value, or any other text; repeatable. Default: none.",
        ),
    ] = None
    map_: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="MODULE:FUNCTION",
            help="Call this function with the arguments of each job by name. It returns the new ones, or nothing if "
            "the job is to stay dead. Default: none.",
        ),
    ] = None
    anyway: Anyway = False
    continue_: Annotated[
        bool,
        typer.Option(
            "--continue",
            help="If the new arguments of a job do not fit, replay the jobs before it. Default: replay nothing.",
        ),
    ] = False

    def new(self, session: Session) -> NewArguments | None:
        """The new values by name, or the function."""
        if self.set_ and self.map_:
            raise typer.BadParameter("--set and --map exclude each other: pass only one")
        if self.map_:
            return _function(session, self.map_)
        return dict(map(_named, self.set_)) if self.set_ else None


def counted(session: Session, meant: Filters, limit: int | None) -> tuple[int, Exit]:
    """The number of matching jobs; and NOT_FOUND when an id among the filters is unknown, otherwise OK."""

    async def count(app: App) -> tuple[int, bool]:
        ids = await named_dead(app, meant)
        number = await app.dlq.count(**meant)
        if not number:
            note_unknown_task(app, cast("str | None", meant.get("task")))
        return number, await name_unknown(app, ids)

    number, unknown = session.run(count)
    return number if limit is None else min(number, limit), Exit.NOT_FOUND if unknown else Exit.OK


class Planned(NamedTuple):
    """How a plan is made."""

    new: NewArguments | None = None
    anyway: bool = False
    continue_: bool = False
    check: bool = False


def planned(
    session: Session, meant: Filters, limit: int | None, count: int, how: Planned, *, quiet: bool
) -> ReplayPlan:
    """The plan for `count` dead jobs."""
    new, anyway, continue_, check = how
    quiet = quiet or not (new or check)
    with progress("Checking", Steps(count, "dead job", "nothing was changed"), count, quiet=quiet) as steps:
        plan = session.run(
            lambda app: steps.run(
                app.dlq.plan(
                    limit=limit,
                    arguments=new,
                    anyway=anyway,
                    continue_=continue_,
                    check=check,
                    progress=steps,
                    **meant,
                )
            )
        )
    note_unchecked(plan.unchecked)
    if plan.problem:
        output.note(f"fennelq: not all dead jobs are counted: {plan.problem}")
    return plan


def note_unchecked(number: int) -> None:
    """Print that so many jobs keep what belongs to their old arguments."""
    if number:
        output.note(
            f"{output.counted(number, 'dead job')} of tasks that the app does not have: the new arguments are not "
            "checked, and the limits and keys of the old ones stay"
        )


def replayed(
    session: Session, plan: ReplayPlan, rate: float | None, canary: Canary, *, quiet: bool
) -> ReplayReport:
    """Replay the jobs of the plan."""
    total = plan.count - plan.skipped
    with progress("Replaying", Steps(total, "dead job"), total, quiet=quiet) as steps:
        report = session.change(
            lambda app: steps.run(
                app.dlq.replay(
                    plan=plan,
                    rate=rate,
                    canary=canary.canary,
                    canary_timeout=canary.seconds,
                    progress=steps,
                )
            ),
            planned=plan.count,
            outcome=lambda report: Outcome(report.replayed, recorded_words(report, plan.count)),
        )
        if report.stopped not in ("", plan.refused):
            steps.stop_short()
        return report


def print_plan(session: Session, plan: ReplayPlan, *, as_json: bool) -> None:
    """Print what a replay would do."""
    if as_json:
        output.document(of_replay_plan(plan, session.redaction))
        return
    left = left_dead(plan.key_taken, plan.broken, plan.skipped)
    output.answer(plan.ready, "dead job", "; ".join(["would be replayed", *left]))
    if plan.refused:
        output.note(f"fennelq: {plan.refused}")
    if plan.rewritten:
        rows = [(*row_of(letter), *_changed(session, plan, letter)) for letter in plan.samples]
        output.table(_REWRITTEN, rows)
    else:
        rows = [row_of(letter) for letter in plan.samples]
        output.table(COLUMNS, rows)
    if plan.count > len(rows):
        output.note(f"{len(rows)} of {plan.count:,} shown: `fennelq dlq list` lists more")


def _changed(session: Session, plan: ReplayPlan, letter: DeadLetter) -> Iterator[str]:
    """The old and the new values of the arguments that change, as they may be shown."""
    before, after = plan.rewritten[letter.id]
    same = {name for name in before.keys() & after.keys() if before[name] == after[name]}
    for shown in of_rewritten(plan, letter, session.redaction).values():
        yield output.record({name: value for name, value in shown.items() if name not in same})


def print_report(report: ReplayReport, count: int, *, as_json: bool) -> None:
    """Print what a replay of `count` jobs has done."""
    if as_json:
        output.document(of_report(report))
        return
    output.answer(report.replayed, "dead job", _in_words(report, count))
    if report.stopped:
        output.note(f"fennelq: stopped: {report.stopped}")


def recorded_words(report: ReplayReport, count: int) -> str:
    """What a replay of `count` jobs has done, for the record of operations."""
    words = _in_words(report, count)
    return f"{words}; stopped: {report.stopped}" if report.stopped else words


def _in_words(report: ReplayReport, count: int) -> str:
    words = ["replayed", *left_dead(report.key_taken, report.broken, report.skipped)]
    if report.gone:
        words.append(f"{output.number(report.gone)} gone already")
    if report.died_anew:
        words.append(f"{output.number(report.died_anew)} died of something else than before")
    if report.stopped:
        untouched = count - report.total - report.skipped
        words.append(f"{output.number(untouched)} untouched")
    return "; ".join(words)


def row_of(letter: DeadLetter) -> tuple[object, ...]:
    """A dead job as a row of a table."""
    return (letter.died_at, letter.id, letter.task, letter.error_type, letter.message)


def left_dead(key_taken: int, broken: int, skipped: int) -> list[str]:
    """How many jobs stay dead, and why."""
    why = {
        "still dead, because another job holds their idempotency key": key_taken,
        "still dead, because their records cannot be read": broken,
        "still dead, because they got no new arguments": skipped,
    }
    return [f"{output.number(count)} {what}" for what, count in why.items() if count]


# New arguments


def _named(text: str) -> tuple[str, Written]:
    name, equals, value = text.partition("=")
    if not equals or not (name.isidentifier() or name.isdecimal()):
        raise typer.BadParameter(f"--set {text[:100]!r} is not NAME=VALUE: write user_id=42")
    return name, Written(value)


def _function(session: Session, path: str) -> Callable[[Named], Any]:
    module, colon, name = path.partition(":")
    if not colon or not module or not name.isidentifier():
        raise typer.BadParameter(
            f"--map {path[:100]!r} is not MODULE:FUNCTION: write shop.fixes:add_currency"
        )
    _ = session.found  # the folder of the app's modules can be imported from now on
    try:
        found = getattr(import_module(module), name, None)
    except Exception as error:
        raise Problem(f"--map {module}: {type(error).__name__}: {error}", Exit.USAGE) from error
    if not callable(found):
        raise Problem(f"--map: module {module} has no function {name!r}", Exit.USAGE)
    return cast("Callable[[Named], Any]", found)
