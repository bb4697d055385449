"""The views of single jobs: those that a filter finds, those of a group of dead jobs, and one job with its story."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from fennelq import clock
from fennelq.cli.story import table as story_table
from fennelq.cli.story.changes import Known
from fennelq.cli.story.known import facts_of, known_of
from fennelq.cli.tables.table import Column
from fennelq.cli.top.rows import Line, Role, Row, Subject, joined, one_line, several_lines, shown
from fennelq.cli.top.views import MOST, Partly, View
from fennelq.errors import BrokerUnavailable, InvalidJobId
from fennelq.manage.dead.letter import DeadLetter
from fennelq.manage.documents import text_of_call
from fennelq.manage.finding import SearchProgress, check_live, read_filter, state_of
from fennelq.manage.watch import Snapshot
from fennelq.model.job import JobInfo, split_id
from fennelq.model.query import State
from fennelq.model.runs import StoryRun, took

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.redaction import Redaction

_SHOWN_EVERY: Final = 0.25
"""Seconds between two pictures of a search that goes on."""
_LONGEST_ARGUMENTS: Final = 16_384
_ROLES: Final[dict[State | None, Role]] = {State.DEAD: "urgent", State.RETRY: "soon", State.CANCELLED: "note"}


class Found(NamedTuple):
    """What a search has found so far."""

    rows: Sequence[Row]
    """A row has the beginnings of long texts: the jobs themselves may take a megabyte each."""
    progress: SearchProgress | None = None
    """None when it has ended."""
    problem: str = ""


class FoundView(View):
    """The jobs that a filter finds."""

    title = "jobs"
    columns = (
        Column("id"),
        Column("task", least=12, end=True),
        Column("state"),
        Column("tries", leave=7),
        Column("sent", leave=5),
        Column("due", leave=6),
        Column("error", least=12, end=True, leave=4),
        Column("arguments", least=10, leave=2),
    )
    empty = "No job matches. Jobs that have succeeded or were cancelled are found by their ids only."
    keys = (("enter", "story"), ("c", "cancel"), ("C", "cancel all"), ("R", "replay"))

    def __init__(self, filter: str, redaction: Redaction) -> None:
        self.filter, self._redaction = filter.strip(), redaction

    @property
    def path(self) -> str:
        """The filter."""
        return f"jobs {one_line(self._redaction.filter(self.filter))}"

    async def look(self, app: App, snapshot: Snapshot, partly: Partly) -> Found:
        """Search, and show what is found as soon as it is."""
        query = await app.client.converse(read_filter(self.filter))
        check_live(query)
        rows: list[Row] = []
        shown_at = clock.monotonic()

        def looked(far: SearchProgress) -> None:
            nonlocal shown_at
            if clock.monotonic() - shown_at >= _SHOWN_EVERY:
                shown_at = clock.monotonic()
                partly(Found([*rows], far))

        problem = ""
        try:
            async for job in app.jobs.find(self.filter, limit=MOST, progress=looked):
                rows += [self._row(job)]
        except BrokerUnavailable as error:
            if error.retriable:
                raise
            problem = str(error)  # the jobs of the other queues are found nevertheless
        return Found(rows, None, problem)

    def rows(self, snapshot: Snapshot, seen: Found | None) -> list[Row]:
        """The jobs in the order in which they are found."""
        return [*seen.rows] if seen else []

    def remarks(self, seen: Found | None) -> str:
        """How far the search is, and what it could not read."""
        if seen is None:
            return ""
        far = seen.progress
        progress = f"searching: {far.looked:,} of {far.total:,} jobs" if far else ""
        more = f"the first {MOST}" if len(seen.rows) == MOST else ""
        return joined([progress, more, one_line(seen.problem)])

    def where(self, about: Subject) -> str:
        """The same filter, to change it."""
        return f"{self.filter} " if self.filter else ""

    def _row(self, job: JobInfo) -> Row:
        state, error = state_of(job), job.error
        arguments = arguments_of(job, self._redaction)
        message = f"{error.error_type}: {error.message}" if error else ""
        cells = (
            *(job.id, job.task, state, job.tries, job.enqueued_at, job.due_at),
            *(error.error_type if error else None, arguments or None),
        )
        about = Subject(queue=job.queue, job=job.id, state=state or "", task=job.task)
        more = joined([job.task, job.waiting_because or "", message, arguments])
        return Row(job.id, cells, _ROLES.get(state, "plain"), one_line(more), about)


def arguments_of(job: JobInfo, redaction: Redaction) -> str:
    """The arguments of a job for a list, without its secrets. It reads no long ones: a list may have hundreds."""
    if len(job.arguments) > _LONGEST_ARGUMENTS:
        return f"({len(job.arguments):,} bytes)"
    return one_line(text_of_call(redaction.call(job.task, job.arguments)))


class GroupView(View):
    """The jobs of a group of dead jobs."""

    title = "group"
    columns = (
        Column("died"),
        Column("id"),
        Column("task", least=12, end=True, leave=2),
        Column("error", least=12, end=True, leave=1),
        Column("message", least=16),
    )
    empty = "No job of this group is dead any more."
    keys = (("enter", "story"), ("R", "replay one"), ("A", "replay all"))

    def __init__(self, fingerprint: str, redaction: Redaction) -> None:
        self.fingerprint, self._redaction = fingerprint, redaction

    @property
    def path(self) -> str:
        """The fingerprint."""
        return f"dead › fp:{one_line(self.fingerprint)}"

    async def look(self, app: App, snapshot: Snapshot, partly: Partly) -> list[DeadLetter]:
        """Ask for the newest of these jobs."""
        return await app.dlq.list(fingerprint=self.fingerprint, limit=MOST)

    def rows(self, snapshot: Snapshot, seen: list[DeadLetter] | None) -> list[Row]:
        """The newest first."""
        return list(map(_row_of_letter, seen or ()))

    def remarks(self, seen: list[DeadLetter] | None) -> str:
        """Whether there are more."""
        return f"the newest {MOST}" if seen is not None and len(seen) == MOST else ""

    def where(self, about: Subject) -> str:
        """The dead jobs of this group."""
        return f"state:{State.DEAD} fp:{self.fingerprint} "


def _row_of_letter(letter: DeadLetter) -> Row:
    about = Subject(
        queue=letter.queue, job=letter.id, state=State.DEAD, task=letter.task, group=letter.fingerprint
    )
    cells = (letter.died_at, letter.id, letter.task, letter.error_type, letter.message)
    return Row(letter.id, cells, "plain", one_line(f"{letter.error_type}: {letter.message}"), about)


class JobPage(NamedTuple):
    """A job, and the lines about it."""

    info: JobInfo
    lines: Sequence[Line]


class JobView(View):
    """One job, with its story."""

    title = "job"
    keys = (("c", "cancel"), ("R", "replay"))

    def __init__(self, job: str, redaction: Redaction) -> None:
        self.job, self._redaction = job, redaction

    @property
    def path(self) -> str:
        """The id."""
        return f"job {one_line(self.job)}"

    async def look(self, app: App, snapshot: Snapshot, partly: Partly) -> JobPage:
        """Ask for everything that is known about the job."""
        known = await known_of(app, self.job)
        return JobPage(known.info, self._lines(known))

    def lines(self, seen: JobPage | None) -> Sequence[Line]:
        """Its story, its runs, what happened, and its facts."""
        return seen.lines if seen else ()

    def _lines(self, known: Known) -> list[Line]:
        story, failure, now = known.story, known.info.error, clock.from_ms(clock.wall_ms())
        facts = [(name, one) for name, one in facts_of(known, self._redaction).items() if one not in _EMPTY]
        widest = max((len(name) for name, _ in facts), default=0)
        blank = Line("")
        return [
            Line(one_line(story.sentence), "title"),
            *(Line(_run_in_words(run, now)) for run in story.runs),
            blank,
            *(Line(f"{shown(one.at, now)}  {one_line(one.text)}") for one in story.lines),
            blank,
            *(Line(f"{name:<{widest}}  {shown(value, now)}") for name, value in facts),
            blank,
            *map(Line, several_lines(failure.traceback if failure else "")),
        ]

    def about(self, seen: JobPage | None) -> Subject:
        """The job: keys act on it."""
        state = state_of(seen.info) if seen else None
        return Subject(job=self.job, state=state or "", task=seen.info.task if seen else "")

    def where(self, about: Subject) -> str:
        """The jobs of its queue."""
        with suppress(InvalidJobId):
            return f"queue:{split_id(self.job)[0]} "
        return ""


def _run_in_words(run: StoryRun, now: datetime) -> str:
    facts = [shown(run.executor), shown(run.began, now), took(run.seconds), one_line(story_table.how(run))]
    return joined([f"run {run.number}", *facts])


_EMPTY: Final[tuple[object, ...]] = (None, "", {}, ())
