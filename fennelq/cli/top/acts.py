"""What the keys of `fennelq top` do: each act counts first, asks a question, and is recorded like the command that does
the same, with `top` as the place from which it came.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fennelq.cli import output
from fennelq.cli.acting import WORDS, how_it_ended
from fennelq.cli.auditing import Outcome, in_record, option_in_words, outcome_of_answers
from fennelq.cli.exits import Interrupted
from fennelq.cli.pausing import outcome_of_pauses, pause_queue, resume_queue
from fennelq.cli.replaying import left_dead, recorded_words
from fennelq.cli.top.jobs import arguments_of
from fennelq.cli.top.rows import Subject, one_line
from fennelq.manage.audit import begun
from fennelq.manage.cancelling import Selection
from fennelq.model.pause import QueueSide
from fennelq.model.query import State

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.manage.dead.letter import DeadLetter, ReplayReport
    from fennelq.manage.jobs import JobAnswer
    from fennelq.manage.operation_record import OperationInfo
    from fennelq.model.job import JobInfo

VIA: Final = "top"
_WAIT: Final = 5.0
"""Seconds for a running job to end after it was asked to stop, as in `job cancel`."""
_SIDES: Final[tuple[QueueSide | None, ...]] = (None, "consume", "enqueue")


class Answer(NamedTuple):
    """What a person has chosen."""

    text: str = ""
    choice: int = 0


class Going:
    """How far an act has come. A person may stop it between two steps."""

    def __init__(self, total: int, show: Callable[[int], None]) -> None:
        self._total, self._show = total, show
        self.stopped = False
        self.warnings: list[str] = []

    def __call__(self, done: int) -> None:
        """Report how many jobs are done; raises Interrupted after `stop`, unless all are."""
        self._show(done)
        if self.stopped and done < self._total:
            raise Interrupted(f"Stopped after {done:,} of {output.counted(self._total, 'job')}")

    def stop(self) -> None:
        """End the act after the step that is under way."""
        self.stopped = True


class Question(NamedTuple):
    """A question to a person, and what is done when the answer is yes."""

    title: str
    do: Callable[[App, Answer, Going], Awaitable[str]]
    """Returns a sentence about what was done."""
    lines: Sequence[str] = ()
    """What the person should know before."""
    text: str = ""
    """The label of a text to type; empty when there is none."""
    choices: Sequence[str] = ()
    jobs: int = 0
    """How many jobs it changes; 0 for one that shows no progress."""


Planned = Question | str
"""A question, or a sentence that says why there is nothing to ask."""


# Queues


async def pause(app: App, about: Subject) -> Planned:
    """Pause a queue."""
    info = await app.queues.info(about.queue)

    async def do(app: App, answer: Answer, going: Going) -> str:
        only, why = _SIDES[answer.choice], answer.text.strip()
        _, paused = await _recorded(
            app,
            _Act("queue pause", about.queue, _options(app, {"--only": only, "--why": why})),
            going,
            lambda app: pause_queue(app, about.queue, only, why),
            outcome_of_pauses,
        )
        return f"{about.queue}: {paused}"

    return Question(
        f"Pause queue {one_line(about.queue)}?",
        do,
        (
            f"{one_line(str(info.paused))}." if info.paused else "",
            "It stays paused until you resume it. Running jobs go on.",
        ),
        text="Reason, which callers and operators can read (may be empty)",
        choices=(
            "Both: workers start no jobs, and callers get an error",
            "Consume: workers start no jobs",
            "Enqueue: callers get an error",
        ),
    )


async def resume(app: App, about: Subject) -> Planned:
    """End the pause of a queue."""
    info = await app.queues.info(about.queue)
    if info.paused is None:
        return f"{about.queue} is not paused"

    async def do(app: App, answer: Answer, going: Going) -> str:
        _, left = await _recorded(
            app,
            _Act("queue resume", about.queue),
            going,
            lambda app: resume_queue(app, about.queue, None),
            outcome_of_pauses,
        )
        return f"{about.queue}: {left}" if left else f"{about.queue} resumed"

    return Question(f"Resume queue {one_line(about.queue)}?", do, (f"{one_line(str(info.paused))}.",))


# Jobs


async def cancel(app: App, about: Subject) -> Planned:
    """Cancel one job."""
    info = await app.client.info(about.job)
    if info is None or info.status.ended:
        return f"{about.job} cannot be cancelled: {'it has no record' if info is None else f'it is {info.status}'}"

    async def do(app: App, answer: Answer, going: Going) -> str:
        return await _one(app, "job cancel", about.job, going, lambda: app.jobs.cancel(about.job, wait=_WAIT))

    running = info.owner is not None
    lines = [_job_in_words(app, info), "It runs: it is asked to stop." if running else "It does not run yet."]
    return Question(f"Cancel job {one_line(about.job)}?", do, lines)


async def cancel_all(app: App, where: str) -> Planned:
    """Cancel all jobs that a filter finds."""
    if not where.strip():
        return "An empty filter selects every job: press / and write one."
    query = await app.client.converse(Selection(where=where).query())
    plan = await app.operations.plan("cancel", str(query))
    if not plan.total:
        return f"No job to cancel: {plan.problem}" if plan.problem else "No job to cancel."

    async def do(app: App, answer: Answer, going: Going) -> str:
        begun = await app.operations.begin(plan)
        try:
            ended: OperationInfo = await _recorded(
                app,
                _Act("job cancel", "", _options(app, {"--where": where}), plan.total),
                going,
                lambda app: app.operations.resume(begun.id, progress=going),
                lambda ended: Outcome(ended.done, f"operation {ended.id} {how_it_ended(ended)}"),
            )
        except BaseException:  # otherwise it would look as if its process had crashed
            await app.operations.stop(begun.id)
            raise
        words = f"{output.counted(ended.done, 'job')} {WORDS['cancel'].done}"
        return words if ended.state == "done" else f"{words}; operation {ended.id} {how_it_ended(ended)}"

    lines = [
        f"Filter: {one_line(app.redaction.filter(plan.where))}",
        one_line(plan.problem),
        *(_job_in_words(app, job) for job in plan.samples),
    ]
    return Question(f"Cancel {output.counted(plan.total, 'job')}?", do, lines, jobs=plan.total)


async def replay_one(app: App, about: Subject) -> Planned:
    """Run one dead job again."""
    letter = await app.dlq.get(about.job)
    if letter is None:
        return f"{about.job} is not dead"

    async def do(app: App, answer: Answer, going: Going) -> str:
        return await _one(app, "job retry", about.job, going, lambda: app.jobs.retry(about.job))

    lines = [_letter_in_words(letter), "It keeps its id, and gets all its retries again."]
    return Question(f"Replay job {one_line(about.job)}?", do, lines)


async def replay_group(app: App, about: Subject) -> Planned:
    """Run all dead jobs of a group again."""
    plan = await app.dlq.plan(fingerprint=about.group)
    if not plan.count:
        return "No job of this group is dead any more."

    async def do(app: App, answer: Answer, going: Going) -> str:
        report: ReplayReport = await _recorded(
            app,
            _Act("dlq replay", "", _options(app, {"--fingerprint": about.group}), plan.count),
            going,
            lambda app: app.dlq.replay(plan=plan, progress=going),
            lambda report: Outcome(report.replayed, recorded_words(report, plan.count)),
        )
        return f"{output.counted(report.replayed, 'dead job')} {recorded_words(report, plan.count)}"

    left = left_dead(plan.key_taken, plan.broken, plan.skipped)
    lines = [
        f"{plan.ready:,} can go back{'; ' if left else ''}{'; '.join(left)}.",
        *(_letter_in_words(letter) for letter in plan.samples),
    ]
    return Question(
        f"Replay {output.counted(plan.count, 'dead job')} of {one_line(about.task)}?",
        do,
        lines,
        jobs=plan.count,
    )


def may_cancel(about: Subject) -> bool:
    """Whether a key for cancelling is meant for this job."""
    return bool(about.job) and about.state not in (State.DEAD, State.SUCCESS, State.CANCELLED)


# Records


class _Act(NamedTuple):
    what: str
    """The command that does the same."""
    target: str = ""
    filter: str = ""
    planned: int | None = None


async def _recorded(
    app: App,
    act: _Act,
    going: Going,
    work: Callable[[App], Awaitable[Any]],
    outcome: Callable[[Any], Outcome],
) -> Any:
    entry = begun(act.what, act.target, act.filter, act.planned, None, VIA)
    return await in_record(app, entry, work, outcome, going.warnings.append)


async def _one(app: App, what: str, job: str, going: Going, ask: Callable[[], Awaitable[JobAnswer]]) -> str:
    async def answers(_: App) -> list[JobAnswer]:
        return [await ask()]

    (answer,) = await _recorded(app, _Act(what, job, planned=1), going, answers, outcome_of_answers)
    return f"{answer.id}: {answer.text}"


def _options(app: App, options: Mapping[str, str | None]) -> str:
    """The options of the command that does the same, without secrets."""
    return " ".join(option_in_words(name, word, app.redaction) for name, word in options.items() if word)


def _job_in_words(app: App, job: JobInfo) -> str:
    return one_line(f"{job.id}  {job.task}  {arguments_of(job, app.redaction)}")


def _letter_in_words(letter: DeadLetter) -> str:
    return one_line(f"{letter.id}  {letter.error_type}: {letter.message}")
