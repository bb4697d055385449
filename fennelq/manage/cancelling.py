"""Cancels the jobs that match filters: waiting jobs at once, and running jobs by asking them to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fennelq.broker import verbs
from fennelq.broker.talk import Finds, Talk, ask
from fennelq.errors import ConfigurationError
from fennelq.manage.acting import Order, Work, narrowed
from fennelq.manage.finding import read_filter
from fennelq.manage.queues.queues import OnProgress
from fennelq.model.checks import check_count, check_duration, check_reason, valid_name
from fennelq.model.job import Status
from fennelq.model.query import Query, State, Term, moment_text
from fennelq.model.units import Seconds, milliseconds
from fennelq.wording import a_kind_of

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.task import AnyTask

_STATES: Final[Mapping[Status, frozenset[State]]] = {
    Status.SENT: frozenset({State.WAITING, State.LIMITED}),
    Status.EXECUTING: frozenset({State.RUNNING}),
    Status.SCHEDULED: frozenset({State.SCHEDULED}),
    Status.RETRY: frozenset({State.RETRY}),
}
_CANCELLABLE: Final = frozenset(_STATES)


class Selection(NamedTuple):
    """The jobs that match: of these queues (None: of all), of this task, with one of these statuses, of this age, and
    that match a filter."""

    queues: Sequence[str] | None = None
    task: str | None = None
    statuses: frozenset[Status] = _CANCELLABLE
    older_than_ms: int = 0
    where: str = ""

    @classmethod
    def of(
        cls,
        queue: str | Sequence[str] | None,
        task: str | AnyTask | None,
        status: Status | Sequence[Status] | None,
        older_than: Seconds | None,
        where: str = "",
    ) -> Selection:
        """These filters, checked."""
        if where and not (queue is None and task is None and status is None and older_than is None):
            raise ConfigurationError(
                "where= stands alone: write queue:, task:, state: and until: into the filter instead"
            )
        queues = [queue] if isinstance(queue, str) else queue
        if older_than is not None:
            check_duration("older_than", older_than)
        return cls(
            None if queues is None else [valid_name("queue", name) for name in queues],
            _name_of(task),
            _CANCELLABLE if status is None else _statuses([status] if isinstance(status, str) else status),
            milliseconds(older_than or 0),
            where,
        )

    @property
    def everything(self) -> bool:
        """Whether every job of the app matches."""
        whole_queues = self.task is None and self.statuses == _CANCELLABLE and not self.older_than_ms
        return self.queues is None and whole_queues and not self.where.strip()

    def query(self) -> Talk[Query]:
        """The selection as one filter."""
        terms = [Term("queue", queue) for queue in self.queues or ()]
        if self.task is not None:
            terms.append(Term("task", self.task))
        if self.statuses != _CANCELLABLE:
            terms += [Term("state", str(state)) for status in self.statuses for state in _STATES[status]]
        if self.older_than_ms:
            now_ms = yield from ask(verbs.server.now())
            terms.append(Term("until", moment_text(max(0, now_ms - self.older_than_ms))))
        return (yield from read_filter(self.where)).also(terms)

    def order(self, reason: str, limit: int | None) -> Talk[Order | None]:
        """The order to cancel those of these jobs that were sent before now; None when the list of queues is empty."""
        if self.queues is not None and not self.queues:
            return None
        query = narrowed("cancel", (yield from self.query()))
        return Order("cancel", query, (yield from ask(verbs.server.now())), reason, limit)


class Cancelling:
    """Cancels the jobs that match, at most `limit`, for one caller."""

    def __init__(
        self,
        app: App,
        selection: Selection,
        *,
        limit: int | None = None,
        reason: str = "cancelled",
        everything: bool = False,
        progress: OnProgress | None = None,
    ) -> None:
        check_reason("reason", reason)
        if limit is not None:
            check_count("limit", limit)
        if selection.everything and not everything:
            raise ConfigurationError(
                "this cancels every job of the app: pass queue=, task=, status=, older_than= or where=, or all=True"
            )
        self._app, self._selection, self._limit = app, selection, limit
        self._reason, self._progress = reason, progress

    def run(self) -> Talk[int]:
        """Cancel; returns how many jobs were cancelled or asked to stop. A queue that is damaged, or that the user of
        Redis may not change, does not stop the others: its error is raised at the end."""
        order = yield from self._selection.order(self._reason, self._limit)
        if order is None:
            return 0
        work = Work(self._app, order)
        pages = Finds(work.pages())
        while (acted := (yield from pages.next())) is not None:
            if acted and self._progress:
                self._progress(work.done)
        if work.error is not None:
            raise work.error
        return work.done


def _name_of(task: str | AnyTask | None) -> str | None:
    name: object = task if task is None or isinstance(task, str) else getattr(task, "name", task)
    if name is not None and not isinstance(name, str):
        raise ConfigurationError(f"task must be a task or its name, not {a_kind_of(task)}")
    return name


def _statuses(given: Sequence[Status]) -> frozenset[Status]:
    for status in given:
        if status not in _CANCELLABLE:
            known = ", ".join(sorted(_CANCELLABLE))
            raise ConfigurationError(
                f"jobs with status {str(status)!r:.100} cannot be cancelled, only {known}"
            )
    return frozenset(map(Status, given))
