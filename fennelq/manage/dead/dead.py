"""Lists, replays and removes dead jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack

from fennelq.broker import verbs
from fennelq.broker.keys import queue_keys
from fennelq.broker.talk import Finding, Finds, Found, Talk, ask, ask_all
from fennelq.broker.verb import MOST_JOBS
from fennelq.errors import ConfigurationError
from fennelq.manage.choices import check_choice
from fennelq.manage.dead.exporting import exported
from fennelq.manage.dead.groups import Tally, count_dead
from fennelq.manage.dead.importing import Importing, ImportReport
from fennelq.manage.dead.letter import DeadLetter, Group, ReplayReport, detailed, letter_of, with_record
from fennelq.manage.dead.new_arguments import NewArguments, Rewriting
from fennelq.manage.dead.plan import Batch, Planning, ReplayPlan, changed, plan_of, selected_by
from fennelq.manage.dead.replaying import Replaying, checked_canary
from fennelq.manage.dead.search import Filters, check_cause, dlq_entry
from fennelq.manage.dead.selecting import Selected, in_pages_of, number_of, searches, selected
from fennelq.manage.jobs import JobAnswer, edited
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation, Scan
from fennelq.manage.pace import Pace
from fennelq.manage.queues.queues import OnProgress
from fennelq.model.job import split_id
from fennelq.model.units import Seconds
from fennelq.wording import a_kind_of

if TYPE_CHECKING:
    from fennelq.app import App

Order = Literal["newest", "oldest"]
"""Which dead jobs come first: those that died last, or those that died first."""


# Defined here, because inside the class `list` is a method.
Letters = list[DeadLetter]
Groups = list[Group]


class DeadLetterTalks(Family):
    """The operations on dead jobs."""

    _attribute, _item = "dlq", "letter"

    @Operation
    def list(
        self, *, limit: int | None = 100, order: Order = "newest", **filters: Unpack[Filters]
    ) -> Talk[Letters]:
        """The dead jobs that match the filters, of all queues together; `limit=None` returns all."""
        check_choice("order", order, Order)
        newest = order == "newest"
        found: Letters = []
        for search in (yield from searches(self._app, filters)):
            found += map(letter_of, (yield from search.first(limit, newest)))
        found.sort(key=lambda letter: letter.died_at, reverse=newest)
        return found[:limit]

    @Scan
    def scan(self, **filters: Unpack[Filters]) -> Finding[DeadLetter]:
        """Yields every dead job that matches the filters, queue by queue, the oldest first, read a page at a time."""
        return self._scan(filters)

    @Operation
    def get(self, job_id: str) -> Talk[DeadLetter | None]:
        """Everything about a dead job; None when it is not dead. Raises InvalidJobId when the text is not a job id."""
        queue, key = split_id(job_id)
        keys = queue_keys(self._app.namespace, queue)
        info = yield from ask(verbs.jobs.record(keys, key))
        entry = dlq_entry(info)
        dead = (yield from ask(verbs.dead.dead_entry(keys, entry))) if entry else None
        return detailed(dead, info) if dead and info else None

    @Operation
    def count(self, **filters: Unpack[Filters]) -> Talk[int]:
        """The number of dead jobs that match the filters."""
        return (yield from number_of((yield from searches(self._app, filters))))

    @Operation
    def groups(self, **filters: Unpack[Filters]) -> Talk[Groups]:
        """The dead jobs by cause, the largest group first. With other filters than `queue`, this reads every dead
        job."""
        tally, found = Tally(), (yield from searches(self._app, filters))
        if filters.keys() <= {"queue"}:
            yield from count_dead([search.keys for search in found], tally)
            return tally.groups()
        for search in found:
            read = Finds(search.pages())
            while (page := (yield from read.next())) is not None:
                tally.add_jobs(page)
        return tally.groups()

    @Operation
    def plan(
        self,
        *,
        limit: int | None = None,
        arguments: NewArguments | None = None,
        anyway: bool = False,
        continue_: bool = False,
        who: str | None = None,
        check: bool = True,
        progress: OnProgress | None = None,
        **filters: Unpack[Filters],
    ) -> Talk[ReplayPlan]:
        """What `replay` with these arguments would do now. `replay(plan=plan)` does it, without the jobs that die after
        the plan was made.

        With `check=False`, it only counts the jobs, and does not ask whether they can go back.
        """
        check_cause(filters)
        rewriting = self._rewriting(arguments, who, anyway=anyway)
        if check or rewriting is not None or limit is not None:
            return (yield from self._planned(limit, rewriting, filters, progress, continue_=continue_))
        jobs, found = yield from selected(self._app, filters, limit)
        return plan_of(jobs, (yield from number_of(found)), [])

    @Operation
    def replay(
        self,
        *,
        plan: ReplayPlan | None = None,
        limit: int | None = None,
        rate: float | None = None,
        canary: int | None = None,
        canary_timeout: Seconds = 60.0,
        arguments: NewArguments | None = None,
        anyway: bool = False,
        continue_: bool = False,
        who: str | None = None,
        progress: OnProgress | None = None,
        **filters: Unpack[Filters],
    ) -> Talk[ReplayReport]:
        """Put dead jobs back, each as the same job with all its retries again, the oldest first.

        It does not replay jobs that die while it runs, or after the `plan` was made. When it is interrupted and run
        again, it creates no duplicates: a job is either still dead or back in its queue. `rate` limits the jobs per
        second: it is the average, and never exceeded by more than a tenth within a second. With `canary=5`, it puts
        five jobs back first, and leaves the others dead if one of these dies as before, or does not end within
        `canary_timeout` seconds.

        `arguments` are new values of some arguments by name, or a function that gets the arguments of a job by name and
        returns the new ones; None leaves this job dead. The limits and the computed key of the job follow from them. It
        raises ReplayRefused, and replays nothing, when new arguments do not fit the task; with `continue_=True`, it
        replays the jobs before that one. `anyway=True` changes also jobs whose tasks this app does not have, without a
        check. The history of each job keeps its old arguments, and `who`: the user and the host by default.
        """
        pace, timeout = Pace(rate), checked_canary(canary, canary_timeout)
        check_cause(filters)
        if plan is not None:
            _check_alone(limit, arguments, filters)
        elif canary is not None or arguments is not None:
            rewriting = self._rewriting(arguments, who, anyway=anyway)
            plan = yield from self._planned(limit, rewriting, filters, None, continue_=continue_)
        jobs = Selected(filters, limit) if plan is None else selected_by(plan)
        replaying = Replaying(self._batches(jobs), pace, progress)
        if plan is None:
            return (yield from replaying.all())
        return (yield from replaying.by(self._app, plan, canary, timeout))

    @Operation
    def edit(
        self, job_id: str, arguments: Mapping[str, Any], *, anyway: bool = False, who: str | None = None
    ) -> Talk[JobAnswer]:
        """Put one dead job back with other arguments: all of them, by name. The limits and the computed key of the job
        follow from them.

        Raises InvalidArguments when they do not fit the task, and UnknownTask when this app does not have the task,
        unless `anyway=True`. The history of the job keeps the old arguments, and `who`.
        """
        if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"arguments must be a dict of all arguments by name, not {a_kind_of(arguments)}"
            )
        rewriting = Rewriting(self._app, lambda _: arguments, anyway=anyway, who=who)
        return (yield from edited(self._app, job_id, rewriting))

    @Operation
    def purge(
        self,
        *,
        plan: ReplayPlan | None = None,
        limit: int | None = None,
        all: bool = False,
        progress: OnProgress | None = None,
        **filters: Unpack[Filters],
    ) -> Talk[int]:
        """Remove dead jobs for good, with their records and results, the oldest first; returns how many.

        Without a filter, `all=True` is required. With a `plan`, it removes the jobs of the plan, and not those that
        died later.
        """
        check_cause(filters)
        if plan is not None:
            _check_alone(limit, None, filters)
        elif not (all or any(name != "where" or str(value).strip() for name, value in filters.items())):
            raise ConfigurationError(
                "this removes every dead job of the app: pass queue=, task=, error=, fingerprint=, since=, until=, "
                "ids= or where=, or all=True"
            )
        removed = done = 0
        jobs = Selected(filters, limit) if plan is None else selected_by(plan)
        work = Finds(in_pages_of(self._app, jobs, MOST_JOBS))
        while (found := (yield from work.next())) is not None:
            search, page = found
            removed += yield from search.forget(page)
            done += len(page)
            if progress:
                progress(done)
        return removed

    @Scan
    def export(self, *, secrets: bool = False, **filters: Unpack[Filters]) -> Finding[dict[str, Any]]:
        """Yields everything about each dead job that matches the filters, as JSON values: `import_` reads them.

        Secrets (arguments and headers with names like `password` or `api_key`) are hidden, and such a job cannot be
        imported; with `secrets=True` they are in the export.
        """
        return self._export(filters, secrets=secrets)

    @Operation
    def import_(
        self,
        lines: Iterable[str | bytes | Mapping[str, Any]],
        *,
        dead: bool = False,
        continue_: bool = False,
        progress: OnProgress | None = None,
    ) -> Talk[ImportReport]:
        """Send the jobs of an export, with their ids; with `dead=True`, put them back into the dead-letter queues.

        A job whose id is known is left alone, so an import may be repeated. Raises ImportRefused, with the numbers of
        the lines, and imports nothing, when lines cannot be imported; with `continue_=True`, it imports the others.
        """
        return (yield from Importing(self._app, dead=dead, continue_=continue_).run(lines, progress))

    def _rewriting(
        self, arguments: NewArguments | None, who: str | None, *, anyway: bool
    ) -> Rewriting | None:
        return None if arguments is None else Rewriting(self._app, arguments, anyway=anyway, who=who)

    def _planned(
        self,
        limit: int | None,
        rewriting: Rewriting | None,
        filters: Filters,
        progress: OnProgress | None,
        *,
        continue_: bool,
    ) -> Talk[ReplayPlan]:
        jobs, found = yield from selected(self._app, filters, limit)
        return (yield from Planning(found, rewriting, continue_=continue_).run(jobs, progress))

    def _batches(self, jobs: Selected) -> Finding[Batch]:
        """The selected jobs, with their changes."""
        if jobs.changes is not None:
            yield from changed(self._app.namespace, jobs.changes, MOST_JOBS)
            return
        work = Finds(in_pages_of(self._app, jobs, MOST_JOBS))
        while (found := (yield from work.next())) is not None:
            search, page = found
            yield Found(Batch(search.keys, page, {}))

    def _export(self, filters: Filters, *, secrets: bool) -> Finding[dict[str, Any]]:
        work = Finds(in_pages_of(self._app, Selected(filters, None), MOST_JOBS))
        while (found := (yield from work.next())) is not None:
            search, page = found
            for line in (yield from exported(self._app, search, page, secrets=secrets)):
                yield Found(line)

    def _scan(self, filters: Filters) -> Finding[DeadLetter]:
        for search in (yield from searches(self._app, filters)):
            read = Finds(search.pages())
            while (page := (yield from read.next())) is not None:
                for dead in page:
                    yield Found(letter_of(dead))


class DeadLetters(DeadLetterTalks, Awaiting):
    """The dead-letter queues of an app, one per queue. All operations work in pages, whatever the number of dead
    jobs."""


class BlockingDeadLetters(DeadLetterTalks, Blocking):
    """The dead-letter queues of an app, for code without an event loop: `app.sync.dlq`."""


def _check_alone(limit: int | None, arguments: NewArguments | None, filters: Filters) -> None:
    """Raises ConfigurationError for what a plan decides."""
    if limit is not None or arguments is not None or filters:
        raise ConfigurationError(
            "plan= has the filters, the limit and the arguments: pass them to app.dlq.plan(…)"
        )


def with_details(app: App, letters: Sequence[DeadLetter]) -> Talk[list[DeadLetter]]:
    """The same jobs with their records, in one round trip; without those that are not dead any more."""
    infos = yield from ask_all(
        verbs.jobs.record(queue_keys(app.namespace, one.queue), split_id(one.id)[1]) for one in letters
    )
    return [
        with_record(letter, info)
        for letter, info in zip(letters, infos, strict=True)
        if info is not None and dlq_entry(info) == letter.entry
    ]
