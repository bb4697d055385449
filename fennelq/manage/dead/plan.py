"""What a replay would do, found out before it begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, cast

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Finding, Finds, Found, Talk, ask, ask_all
from fennelq.broker.verb import MOST_JOBS
from fennelq.broker.verbs.dead import Change, Changes, DeadCall, DeadJob
from fennelq.errors import FennelqError, ReplayRefused
from fennelq.manage.dead.letter import DeadLetter, ReplayReport, letter_of
from fennelq.manage.dead.new_arguments import Rewriting
from fennelq.manage.dead.search import Page, Search
from fennelq.manage.dead.selecting import Kinds, Selected, bound_of
from fennelq.manage.dead.spool import Spool
from fennelq.manage.queues.queues import OnProgress
from fennelq.model.named_call import Named

SAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What a replay would do now. `await app.dlq.replay(plan=plan)` does this, and does not replay jobs that die after
    the plan was made."""

    count: int
    """The number of dead jobs that match."""
    ready: int
    """The number of jobs that can go back."""
    key_taken: int = 0
    """The number of jobs that cannot go back, because another job holds their idempotency key."""
    broken: int = 0
    """The number of jobs that cannot go back, because their records cannot be read."""
    skipped: int = 0
    """The number of jobs that stay dead because the function that makes new arguments has returned None, or because
    they come after one whose new arguments do not fit."""
    unchecked: int = 0
    """The number of jobs whose tasks this app does not have: their new arguments are not checked, and they keep their
    limits and keys."""
    refused: str = ""
    """Why new arguments do not fit; only with `continue_`, otherwise it is an error."""
    samples: Sequence[DeadLetter] = ()
    """The first five, the oldest of each queue first. With new arguments, the first five that get some."""
    rewritten: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = field(
        default_factory=dict[str, tuple[Named, Named]], repr=False
    )
    """The old and the new arguments of the samples by name, of each id. Secrets are not hidden in them."""
    problem: str = ""
    """Why a queue is left out: it cannot be read. Its jobs are not part of the plan."""
    newest: Mapping[str, str]
    """The newest entry of each queue. Jobs that die later are not part of the plan."""
    made_at: datetime
    _selected: Selected = field(repr=False, compare=False)


def selected_by(plan: ReplayPlan) -> Selected:
    """How the jobs of a plan are found again."""
    return plan._selected  # pyright: ignore[reportPrivateUsage]


class Batch(NamedTuple):
    """Some dead jobs of a queue, with their changes."""

    keys: QueueKeys
    page: Page
    changes: Changes


class Planning:
    """Makes a plan: looks at every job, computes its new arguments, and asks whether it could go back."""

    def __init__(
        self, searches: Sequence[Search], rewriting: Rewriting | None, *, continue_: bool = False
    ) -> None:
        self._searches, self._rewriting, self._continue = searches, rewriting, continue_
        self._changes = None if rewriting is None else Spool()
        self._kinds = Kinds()
        self._counts, self._unreadable = Counter[int](), 0
        self._samples: list[DeadLetter] = []
        self._rewritten: dict[str, tuple[Named, Named]] = {}
        self._newest: dict[str, str] = {}
        self._ids: list[str] = []
        self._seen = 0
        self._refused = ""

    def run(self, selected: Selected, progress: OnProgress | None) -> Talk[ReplayPlan]:
        """Look at every job. Raises ReplayRefused when new arguments do not fit, unless it may plan without them."""
        for search in self._searches:
            read = Finds(search.pages())
            while (found := (yield from read.next())) is not None:
                page = found if selected.limit is None else found[: selected.limit - self._seen]
                for part in pages(page, MOST_JOBS):
                    yield from self._look(search, part)
                    if progress:
                        progress(self._seen)
                if self._seen == selected.limit:
                    return self._plan(selected)
        return self._plan(selected)

    def _look(self, search: Search, page: Page) -> Talk[None]:
        if self._rewriting is None:
            self._samples += map(letter_of, page[: SAMPLES - len(self._samples)])
        self._kinds.add(page)
        changes: Changes = {}
        if self._rewriting is not None:
            calls = yield from ask_all(verbs.dead.call(search.keys, dead.key) for dead in page)
            changes = self._changed(page, calls)
        self._seen += len(page)
        self._newest[search.keys.queue] = page[-1].entry
        if search.is_of_ids:
            self._ids += [dead.id for dead in page]
        asked = page if self._rewriting is None else [dead for dead in page if dead.entry in changes]
        verb = verbs.dead.replayable(search.keys, [dead.entry for dead in asked], changes)
        for answer in (yield from ask(verb)) if asked else ():
            self._counts[answer] += 1

    def _changed(self, page: Page, calls: Sequence[DeadCall | None]) -> Changes:
        changes: dict[str, Change] = {}
        for place, (dead, call) in enumerate(zip(page, calls, strict=True)):
            if self._refused:
                break
            if call is None:
                self._unreadable += 1
                continue
            change = self._change(dead, call, self._seen + place + 1)
            if change is not None:
                changes[dead.entry] = change
                self._add(dead, change)
                if len(self._samples) < SAMPLES:
                    self._show(dead, call, change)
        return changes

    def _change(self, dead: DeadJob, call: DeadCall, number: int) -> Change | None:
        assert self._rewriting is not None
        try:
            return self._rewriting.change(call)
        except FennelqError as error:
            fitting = self._changes.count if self._changes else 0
            refusal = ReplayRefused(dead.id, number, fitting, error)
            if not self._continue:
                raise refusal from error
            self._refused = refusal.why
            return None

    def _add(self, dead: DeadJob, change: Change) -> None:
        assert self._changes is not None
        arguments, gates, key, before = change
        self._changes.add(list(dead), [arguments.decode(), gates, key, before])

    def _show(self, dead: DeadJob, call: DeadCall, change: Change) -> None:
        assert self._rewriting is not None
        old, new = (self._rewriting.named(call.task, raw) for raw in (call.arguments, change.arguments))
        self._samples.append(letter_of(dead))
        self._rewritten[dead.id] = old, new

    def _plan(self, selected: Selected) -> ReplayPlan:
        changed = self._seen if self._changes is None else self._changes.count
        left = ReplayReport(skipped=self._seen - changed - self._unreadable, broken=self._unreadable)
        if selected.limit is not None:
            selected = self._narrowed(selected)
        selected = selected._replace(kinds=self._kinds, changes=self._changes, left=left)
        plan = plan_of(
            selected,
            self._seen,
            self._samples,
            ready=self._counts[1],
            key_taken=self._counts[-1],
            broken=self._counts[-2] + self._unreadable,
            skipped=left.skipped,
            unchecked=0 if self._rewriting is None else self._rewriting.unchecked,
            refused=self._refused,
        )
        return replace(plan, rewritten=self._rewritten)

    def _narrowed(self, selected: Selected) -> Selected:
        """Only the jobs that were looked at: otherwise a second replay of the plan would go on with those after
        them."""
        if any(search.is_of_ids for search in self._searches):
            return selected._replace(filters={**selected.filters, "ids": self._ids})
        return selected._replace(bound=bound_of(selected)._replace(newest=self._newest))


def plan_of(selected: Selected, count: int, samples: Sequence[DeadLetter], **facts: int | str) -> ReplayPlan:
    """The plan for these jobs."""
    bound = bound_of(selected)
    plan = ReplayPlan(
        count=count,
        ready=count,
        samples=samples,
        problem=str(selected.problem or ""),
        newest=bound.newest or {},
        made_at=clock.from_ms(bound.at_ms),
        _selected=selected,
    )
    return replace(plan, **cast("Any", facts))


def changed(app: str, changes: Spool, most: int) -> Finding[Batch]:
    """Yields the jobs with new arguments, at most `most` at a time, each time of one queue."""
    page: Page = []
    by_entry: dict[str, Change] = {}
    for facts, (arguments, *others) in changes:
        dead = DeadJob(*facts)
        if page and (len(page) >= most or page[0].queue != dead.queue):
            yield Found(Batch(queue_keys(app, page[0].queue), page, by_entry))
            page, by_entry = [], {}
        page.append(dead)
        by_entry[dead.entry] = Change(arguments.encode(), *others)
    if page:
        yield Found(Batch(queue_keys(app, page[0].queue), page, by_entry))
