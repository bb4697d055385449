"""Acts on the jobs that a filter selects, for a command: counts them, asks, and performs an operation with a bar."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from fennelq.cli import output
from fennelq.cli.auditing import Outcome
from fennelq.cli.consent import agree
from fennelq.cli.exits import Exit, Interrupted
from fennelq.cli.finding import COLUMNS, require_known, row
from fennelq.cli.steps import Steps, progress
from fennelq.manage.cancelling import Selection
from fennelq.manage.documents import of_plan
from fennelq.model.checks import check_reason
from fennelq.streams import is_terminal

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.cli.session import Session
    from fennelq.manage.acting import Act
    from fennelq.manage.operation_record import OperationInfo
    from fennelq.manage.operations import OperationPlan


class _Words(NamedTuple):
    """How a command describes an act."""

    question: str
    bar: str
    would: str
    to: str
    done: str
    member: str
    """The member of the JSON object that has the number of jobs."""


WORDS: Final = {
    "cancel": _Words(
        "Cancel", "Cancelling", "would be cancelled", "to cancel", "cancelled or asked to stop", "cancelled"
    ),
    "replay": _Words("Replay", "Replaying", "would be replayed", "to replay", "replayed", "replayed"),
    "purge": _Words("Remove", "Removing", "would be removed", "to remove", "removed for good", "removed"),
    "run": _Words("Run now", "Moving", "would run now", "to run now", "due now", "due_now"),
}


@dataclass(frozen=True)
class Acting:
    """An act on the jobs that a command selects."""

    session: Session
    act: Act
    selection: Selection
    everything: bool
    limit: int | None = None
    reason: str = "cancelled"

    def run(self, *, dry_run: bool, yes: bool, as_json: bool) -> Exit:
        """Count the jobs, ask, and act on them."""
        check_reason("reason", self.reason)
        words, plan = WORDS[self.act], self.session.run(self._plan)
        if plan.problem:
            output.note(f"fennelq: not all jobs are counted: {plan.problem}")
        count = plan.total if self.limit is None else min(self.limit, plan.total)
        if dry_run or not count:
            _print_plan(self.session, plan, count, words.would if dry_run else words.to, as_json=as_json)
            return Exit.FAILED if plan.problem else Exit.OK
        agree(f"{words.question} {output.counted(count, 'job')}?", yes=yes)
        begun = self.session.run(lambda app: app.operations.begin(plan, limit=self.limit, reason=self.reason))
        return performed(self.session, begun, quiet=as_json, as_json=as_json)

    async def _plan(self, app: App) -> OperationPlan:
        query = await app.client.converse(self.selection.query())
        await require_known(app, query)
        return await app.operations.plan(self.act, str(query), everything=self.everything)


def performed(session: Session, operation: OperationInfo, *, quiet: bool, as_json: bool) -> Exit:
    """Perform an operation, and print how it ended. Ctrl-C stops it between two steps."""
    words, left = WORDS.get(operation.act, WORDS["run"]), max(0, operation.total - operation.done)
    steps = Steps(
        operation.total, advice=f"`fennelq op resume {operation.id}` continues it", done=operation.done
    )
    try:
        with progress(words.bar, steps, left, quiet=quiet) as steps:
            ended = session.change(
                lambda app: steps.run(app.operations.resume(operation.id, progress=steps)),
                planned=left,
                outcome=lambda ended: Outcome(
                    max(0, ended.done - operation.done), f"operation {ended.id} {how_it_ended(ended)}"
                ),
            )
            if ended.state != "done":
                steps.stop_short()
    except Interrupted:
        session.run(lambda app: app.operations.stop(operation.id))
        raise
    if as_json:
        output.document({words.member: ended.done, "operation": ended.id, "state": ended.state})
    else:
        output.answer(ended.done, "job", words.done)
    if ended.state == "done":
        return Exit.OK
    output.note(f"operation {ended.id} {how_it_ended(ended)}")
    return Exit.FAILED


_HOW: Final = {
    "stopped": "was stopped by another process. `fennelq op resume` continues it",
    "running": "is performed by another process now",
    "failed": "could not be done completely",
}


def how_it_ended(ended: OperationInfo) -> str:
    """How an operation has ended, in words that follow its id."""
    because = f": {ended.problem}" if ended.problem else ""
    return f"{_HOW.get(ended.state, ended.state)}{because}"


def _print_plan(session: Session, plan: OperationPlan, count: int, what: str, *, as_json: bool) -> None:
    if as_json:
        output.document({**of_plan(plan, session.redaction), "count": count})
        return
    output.answer(count, "job", what)
    if count and is_terminal(sys.stdout):
        output.table(COLUMNS, [row(job, session.redaction) for job in plan.samples])
