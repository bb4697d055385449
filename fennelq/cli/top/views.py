"""The views of `fennelq top`: what each asks Redis, which rows it shows, and where each row leads.

A view has no query and no rule of its own: it asks `fennelq.manage`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from fennelq.cli import output
from fennelq.cli.tables.executors import now_of
from fennelq.cli.tables.queues import done_and_failed
from fennelq.cli.tables.running import remarks_of
from fennelq.cli.tables.table import Column
from fennelq.cli.top.rows import UNKNOWN, Line, PerSecond, Role, Row, Span, Subject, joined, one_line, shown
from fennelq.manage.attention import Need, Urgency
from fennelq.manage.dead.letter import Group
from fennelq.manage.documents import words_of
from fennelq.manage.executors.info import ExecutorInfo
from fennelq.manage.overview import DeadGroups, Overview, Running, dead_groups, overview, running_jobs
from fennelq.manage.queues.info import QueueInfo
from fennelq.manage.running import RunningJob
from fennelq.manage.watch import Rates, Snapshot
from fennelq.model.query import State
from fennelq.model.times import shown as duration

if TYPE_CHECKING:
    from fennelq.app import App

MOST: Final = 500
"""Rows of a list of jobs."""
Partly = Callable[[Any], None]
"""Called with what a look has found so far."""

_ROLES: Final[dict[Urgency, Role]] = {Urgency.URGENT: "urgent", Urgency.SOON: "soon", Urgency.NOTE: "note"}
_STATES: Final[dict[str, Role]] = {
    "works": "plain",
    "starting": "note",
    "draining": "note",
    "stopping": "note",
}


class View:
    """A list, or a page."""

    title: ClassVar[str]
    columns: ClassVar[tuple[Column, ...]] = ()
    """None for a page of text."""
    empty: ClassVar[str] = ""
    asks: ClassVar[bool] = True
    """Whether it asks Redis more than the snapshot has."""
    keys: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Keys that act in this view, and what they do."""

    @property
    def path(self) -> str:
        """Where a person is."""
        return self.title

    async def look(self, app: App, snapshot: Snapshot, partly: Partly) -> Any:
        """What it shows besides the snapshot. It may raise what the functions of `fennelq.manage` raise."""

    def rows(self, snapshot: Snapshot, seen: Any) -> list[Row]:
        """The rows, in the order in which they are most useful."""
        return []

    def lines(self, seen: Any) -> Sequence[Line]:
        """The lines of a page of text."""
        return ()

    def remarks(self, seen: Any) -> str:
        """What is missing, or how far a search has come; empty without either."""
        return ""

    def where(self, about: Subject) -> str:
        """The filter with which a search begins here."""
        return f"queue:{about.queue} " if about.queue else ""


def _of_unread(found: DeadGroups | Running | None) -> str:
    unread: Mapping[str, str] = found.unread if found else {}
    return "; ".join(f"{one_line(what)} unknown: {one_line(why)}" for what, why in unread.items())


class OverviewView(View):
    """What needs attention, and the executors."""

    title = "overview"
    columns = (Column("what", least=9), Column("name", least=14, end=True), Column("", least=20))
    empty = "No queue and no executor yet: send a job, and start a worker with `fennelq worker`."

    async def look(self, app: App, snapshot: Snapshot, partly: Partly) -> Overview:
        """Ask for the causes of death and the schedules."""
        return await app.client.converse(overview(app, snapshot))

    def rows(self, snapshot: Snapshot, seen: Overview | None) -> list[Row]:
        """What needs attention, then the executors."""
        found = seen.needs if seen else []
        rows = [_row_of_need(need, number) for number, need in enumerate(found)]
        if not snapshot.executors_known:
            rows.append(
                Row("executors", ("executors", "", UNKNOWN), "note", "Redis refuses to list the executors.")
            )
        return [*rows, *map(_row_of_executor, snapshot.executors.values())]

    def where(self, about: Subject) -> str:
        """The jobs of an executor or a queue."""
        return f"state:{State.RUNNING} on:{about.executor} " if about.executor else super().where(about)


def _row_of_need(need: Need, number: int) -> Row:
    about = {
        "queue": Subject(queue=need.name),
        "group": Subject(group=need.name),
        "executor": Subject(executor=need.name),
    }.get(need.of, Subject())
    more = need.sentence[:1].upper() + need.sentence[1:]
    return Row(
        f"{need.kind} {need.of} {need.name} {number if need.of == 'part' else ''}",
        (need.kind, need.name, need.sentence),
        _ROLES[need.urgency],
        f"{more}. {need.advice}" if need.advice else f"{more}.",
        about,
    )


def _row_of_executor(executor: ExecutorInfo) -> Row:
    jobs = "" if executor.running is None else f"{executor.running}/{executor.slots or 0} jobs"
    lag = f"lag {duration(executor.lag)}" if executor.lag is not None else ""
    says = joined([executor.state, jobs, now_of(executor) or "", lag])
    more = joined(
        [
            f"Executor {executor.name}",
            f"on {executor.host}, pid {executor.pid}" if executor.host else "",
            f"fennelq {executor.version}" if executor.version else "",
            f"serves {', '.join(executor.queues)}" if executor.queues else "",
        ]
    )
    role: Role = _STATES.get(
        executor.state, "urgent" if executor.alive or executor.state == "silent" else "note"
    )
    about = Subject(executor=executor.name)
    return Row(f"executor {executor.name}", ("executor", executor.name, says), role, one_line(more), about)


class QueuesView(View):
    """Every queue, with its numbers."""

    title = "queues"
    columns = (
        Column("queue", least=12),
        Column("waiting"),
        Column("running", leave=1),
        Column("later", leave=4),
        Column("retry", leave=5),
        Column("dead"),
        Column("done/s", leave=2),
        Column("failed/s", leave=3),
        Column("oldest", leave=6),
        Column("limited", leave=7),
        Column("state", least=6, leave=1),
    )
    empty = "No queues yet: send a job."
    asks = False
    keys = (("enter", "jobs"), ("p", "pause"), ("r", "resume"))

    def rows(self, snapshot: Snapshot, seen: object) -> list[Row]:
        """A row for each queue; first those that have something to do, or that need attention."""
        queues = sorted(snapshot.queues.values(), key=_idle)
        return [_row_of_queue(queue, snapshot) for queue in queues]


def _idle(queue: QueueInfo) -> bool:
    busy = queue.waiting or queue.running or queue.scheduled or queue.retry or queue.dead or queue.in_lines
    return not (busy or queue.damage or queue.paused)


def _row_of_queue(queue: QueueInfo, snapshot: Snapshot) -> Row:
    about = Subject(queue=queue.name)
    if queue.damage:
        state = UNKNOWN if queue.unknown else "not served"
        cells = (queue.name, *([UNKNOWN] + [None] * 8 if queue.unknown else [None] * 9), state)
        more = f"Queue {queue.name} is {state}: {queue.damage}"
        return Row(queue.name, cells, "note" if queue.unknown else "urgent", one_line(more), about)
    rates = snapshot.rates.get(queue.name)
    done, failed = (None, None) if rates is None else map(PerSecond, done_and_failed(rates))
    cells = (
        *(queue.name, queue.waiting, queue.running, queue.scheduled, queue.retry, queue.dead, done, failed),
        *(_oldest(queue), queue.in_lines or None, _state(queue)),
    )
    because = "; ".join(queue.waiting_because)
    more = f"{queue.name}: {queue.paused}" if queue.paused else f"Jobs wait: {because}" if because else ""
    role: Role = "note" if queue.paused else "urgent" if because else "calm" if _idle(queue) else "plain"
    return Row(queue.name, cells, role, one_line(more), about)


def _oldest(queue: QueueInfo) -> Span | None:
    """For how long its oldest job has been ready."""
    if queue.waiting_since is None or queue.at is None:
        return None
    return Span(max(0.0, (queue.at - queue.waiting_since).total_seconds()))


def _state(queue: QueueInfo) -> str:
    if queue.paused:
        return "paused" if queue.paused.consuming else "enqueue paused"
    return "not served" if queue.waiting_because else "idle" if _idle(queue) else ""


class RunningView(View):
    """The jobs that run."""

    title = "running"
    columns = (
        Column("for"),
        Column("id"),
        Column("task", least=12, end=True),
        Column("executor", least=12, end=True, leave=3),
        Column("try", leave=5),
        Column("progress", least=10, leave=2),
        Column("remarks", least=10, leave=4),
    )
    empty = "No jobs run."
    keys = (("enter", "story"), ("c", "cancel"))

    def __init__(self, lease: float) -> None:
        self._lease = lease

    async def look(self, app: App, snapshot: Snapshot, partly: Partly) -> Running:
        """Ask for the jobs that run, in the queues that have some."""
        return await app.client.converse(running_jobs(app, snapshot, MOST))

    def rows(self, snapshot: Snapshot, seen: Running | None) -> list[Row]:
        """Those that run longest first."""
        return [self._row(job) for job in seen.jobs] if seen else []

    def remarks(self, seen: Running | None) -> str:
        """What could not be read, and whether there are more."""
        more = f"only the {MOST} that run longest" if seen and len(seen.jobs) == MOST else ""
        return joined([_of_unread(seen), more])

    def where(self, about: Subject) -> str:
        """The jobs that run."""
        return f"state:{State.RUNNING} "

    def _row(self, job: RunningJob) -> Row:
        remarks = "; ".join(remarks_of(job, self._lease))
        ran = None if job.started_at is None else Span(job.seconds)
        progress = words_of(job.progress) if job.progress else None
        about = Subject(queue=job.queue, job=job.id, state=State.RUNNING, task=job.task)
        more = joined([job.task, f"on {job.owner}", progress or "", remarks])
        cells = (ran, job.id, job.task, job.owner, job.tries, progress, remarks)
        return Row(job.id, cells, "soon" if remarks else "plain", one_line(more), about)


class DeadView(View):
    """The dead jobs by cause."""

    title = "dead"
    columns = (
        Column("jobs"),
        Column("task", least=12, end=True),
        Column("error", least=12, end=True),
        Column("newest", leave=1),
        Column("first", leave=4),
        Column("message", least=16, leave=2),
        Column("fingerprint", leave=3),
    )
    empty = "No dead jobs."
    keys = (("enter", "jobs"), ("R", "replay"))

    async def look(self, app: App, snapshot: Snapshot, partly: Partly) -> DeadGroups:
        """Ask for the causes of death, in the queues that have dead jobs."""
        return await app.client.converse(dead_groups(app, snapshot))

    def rows(self, snapshot: Snapshot, seen: DeadGroups | None) -> list[Row]:
        """The largest group first."""
        return list(map(_row_of_group, seen.groups)) if seen else []

    def remarks(self, seen: DeadGroups | None) -> str:
        """What could not be read."""
        return _of_unread(seen)

    def where(self, about: Subject) -> str:
        """Dead jobs, of the group at the cursor."""
        return f"state:{State.DEAD} "


def _row_of_group(group: Group) -> Row:
    cells = (
        *(
            group.jobs,
            group.task or "(other causes)",
            group.error_type or group.reason,
            group.newest,
            group.first,
        ),
        *(group.message, group.fingerprint),
    )
    more = f"{group.error_type or group.reason}: {group.message}" if group.message else group.reason
    about = Subject(group=group.fingerprint, task=group.task)
    return Row(group.fingerprint, cells, "plain", one_line(more), about)


def numbers(snapshot: Snapshot) -> str:
    """The figures of all queues together, on one line."""
    counted = [queue for queue in snapshot.queues.values() if not queue.damage]
    rates: list[Rates] = [*snapshot.rates.values()]
    slots = sum(executor.slots or 0 for executor in snapshot.executors.values() if executor.alive)
    of_slots = f" of {slots:,}" if slots else ""
    done, failed = (
        (sum(column) for column in zip(*map(done_and_failed, rates), strict=True)) if rates else (0, 0)
    )
    unknown = len(snapshot.queues) - len(counted)
    figures: Sequence[tuple[str, object]] = (
        ("waiting", sum(queue.waiting + queue.in_lines for queue in counted)),
        ("running", f"{sum(queue.running for queue in counted):,}{of_slots}"),
        ("later", sum(queue.scheduled + queue.retry for queue in counted)),
        ("dead", sum(queue.dead for queue in counted)),
    )
    texts = [f"{shown(value)} {name}" for name, value in figures]
    more = [f"{done:,.1f} done/s", f"{failed:,.1f} failed/s"] if rates else []
    return joined([*texts, *more, f"{output.counted(unknown, 'queue')} {UNKNOWN}" if unknown else ""])
