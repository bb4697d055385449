"""Acts on all jobs that match a filter: cancels them, runs them now, puts dead ones back, or removes dead ones. A step
that is repeated does not act on the same jobs again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys
from fennelq.broker.talk import Finding, Finds, Found, Talk, ask, ask_all
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import MOST_JOBS
from fennelq.broker.verbs.dead import Change, Changes
from fennelq.broker.verbs.jobs import ASKED, CANCELLED, Chosen
from fennelq.broker.verbs.search import Criteria, Hit
from fennelq.errors import BrokerUnavailable, FennelqError, InvalidFilter
from fennelq.manage.canary import CANARY_TIMEOUT, Canary
from fennelq.manage.dead.new_arguments import Rewriting
from fennelq.manage.dead.search import put_back
from fennelq.manage.finding import At, Search
from fennelq.manage.pace import Pace
from fennelq.model.query import Query, State, Term

if TYPE_CHECKING:
    from fennelq.app import App

Act = Literal["cancel", "run", "replay", "purge"]
"""What an operation does: cancel jobs, run jobs that are due later now, put dead jobs back, or remove dead jobs for
good."""

_BEFORE_A_RUN: Final = frozenset({State.SCHEDULED, State.RETRY})
ABLE: Final[Mapping[Act, frozenset[State]]] = {
    "cancel": _BEFORE_A_RUN | {State.WAITING, State.LIMITED, State.RUNNING},
    "run": _BEFORE_A_RUN,
    "replay": frozenset({State.DEAD}),
    "purge": frozenset({State.DEAD}),
}
"""The states of the jobs on which an operation can act."""
_IN_WORDS: Final[Mapping[Act, str]] = {
    "cancel": "cancelled",
    "run": "run now",
    "replay": "replayed",
    "purge": "purged",
}


class Order(NamedTuple):
    """An act, and the jobs that get it."""

    act: Act
    query: Query
    """The filter; it has a term for each state that the jobs may have."""
    until_ms: int
    """Jobs that were sent later, or have died later, are left alone."""
    reason: str = "cancelled"
    limit: int | None = None
    rate: float | None = None
    """The most jobs per second; None when that is unbounded."""
    canary: int | None = None
    """So many jobs go back first, and their ends decide about the others; None: all at once."""
    canary_timeout: float = CANARY_TIMEOUT
    new: Mapping[str, Any] | None = None
    """New values of arguments, by name; None when the jobs keep theirs."""
    anyway: bool = False
    """Whether they may change without the code of the task, and so without a check."""
    who: str = ""
    """The user who has changed the arguments."""

    @property
    def criteria(self) -> Criteria:
        """The search for these jobs. When the filter asks for waiting jobs only, the search also skips jobs that come
        to a lane later: they were scheduled or running before."""
        only_waiting = self.query.states == frozenset({State.WAITING})
        return Criteria(self.query, self.until_ms, self.until_ms if only_waiting else None)


def narrowed(act: Act, query: Query) -> Query:
    """The filter, with the states of the jobs on which the operation can act. Raises InvalidFilter when it names
    others."""
    able = ABLE[act]
    named = {State(value) for value in query.values("state")}
    if query.ids:
        raise InvalidFilter("name these jobs by their ids, and not in a filter")
    if unable := sorted(map(str, named - able)):
        what, known = _IN_WORDS[act], ", ".join(sorted(map(str, able)))
        hint = ": see `fennelq dlq`" if unable[0] == State.DEAD else ""
        raise InvalidFilter(f"jobs in state {unable[0]} cannot be {what}, only {known}{hint}")
    states = query.states & able
    if not states:
        raise InvalidFilter(f"the filter leaves no job that can be {_IN_WORDS[act]}")
    others = [term for term in query.terms if term.word != "state"]
    return Query.of([*others, *(Term("state", str(state)) for state in states)])


class Work:
    """Acts on the jobs of an order, a page at a time, or less if the order has a rate. `at`, `done` and `passed` change
    from step to step."""

    def __init__(
        self,
        app: App,
        order: Order,
        at: At | None = None,
        *,
        done: int = 0,
        passed: int = 0,
        canary: str = "",
        checked: bool = False,
    ) -> None:
        """`canary` and `checked` are how far an earlier process has come."""
        self._app, self._order = app, order
        self._search = Search(app, order.criteria, at, most=MOST_JOBS)
        self._pace = Pace(order.rate)
        self.at = self._search.at
        """Where another performer goes on. While a page is not done, this is its beginning."""
        self.done, self.passed = done, passed
        """The number of jobs on which it has acted, and of those that had moved on before it acted."""
        self.is_checked = checked or order.new is None
        """Whether the new arguments fit all jobs."""
        self._changing = (
            None
            if order.new is None
            else Rewriting(app, order.new, anyway=order.anyway, who=order.who or None)
        )
        self._canary = (
            None
            if order.canary is None
            else Canary(app, order.criteria, order.canary, order.canary_timeout, canary)
        )
        self._refused = ""

    @property
    def error(self) -> BrokerUnavailable | None:
        """Why a queue could not be searched."""
        return self._search.problem

    @property
    def problem(self) -> str:
        """Why it has not acted on all jobs; empty when it has."""
        return self._refused or str(self.error or "")

    @property
    def canary(self) -> str:
        """How far the canary is, for a later process."""
        return self._canary.to_text() if self._canary else ""

    @property
    def state(self) -> tuple[str, bool]:
        """When this changes, it has to be recorded before the next step."""
        return self.canary, self.is_checked

    def pages(self) -> Finding[int]:
        """Yields the number of jobs on which each step has acted. It ends after the last job, at the limit, or when the
        others have to stay as they are."""
        if not self.is_checked:
            yield from self._check()
        if self._canary is not None and not self._refused:
            yield from self._first(self._canary)
        steps = Finds(self._search.pages())
        while not self._is_over and (page := (yield from steps.next())) is not None:
            yield from self._act_on(page.keys, page.hits)

    def count(self) -> Talk[int]:
        """The number of jobs that the order selects."""
        steps, number = Finds(Search(self._app, self._order.criteria).pages()), 0
        while (page := (yield from steps.next())) is not None:
            number += len(page.hits)
        return number if self._order.limit is None else min(number, self._order.limit)

    @property
    def _is_over(self) -> bool:
        limit = self._order.limit
        return bool(self._refused) or (limit is not None and self.done >= limit)

    def _check(self) -> Finding[int]:
        """Before anything is done: do the new arguments fit all jobs?"""
        steps = Finds(Search(self._app, self._order.criteria, most=MOST_JOBS).pages())
        while not self._refused and (page := (yield from steps.next())) is not None:
            try:
                yield from self._changes(page.keys, page.hits)
            except FennelqError as error:
                if isinstance(error, BrokerUnavailable):
                    raise
                self._refused = f"{error}. No job was replayed"
            yield Found(0)
        self.is_checked = not self._refused

    def _first(self, canary: Canary) -> Finding[int]:
        steps = Finds(canary.steps(lambda: self._pace.most, self._paced))
        while (done := (yield from steps.next())) is not None:
            self.done += done
            yield Found(done)
        self._refused = canary.stopped

    def _act_on(self, keys: QueueKeys, hits: list[Hit]) -> Finding[int]:
        """Act on the jobs of a page. With a limit, others of the page take the places of those that have moved on. An
        error of one queue, such as a missing permission, does not stop the others."""
        done = 0
        while hits and not self._is_over:
            some, hits = hits[: self._most], hits[self._most :]
            try:
                done = yield from self._paced(keys, some)
            except (ReplyError, BrokerUnavailable) as error:
                if isinstance(error, BrokerUnavailable) and error.retriable:
                    raise
                self._search.leave_out(keys.queue, error)
                done, hits = 0, []
            except FennelqError as error:  # the code of the task has changed since the check
                self._refused, done, hits = str(error), 0, []
            self.done += done
            self.passed += len(some) - done
            if hits and not self._is_over:
                yield Found(done)
        self.at = self._search.at
        yield Found(done)

    @property
    def _most(self) -> int:
        """The most jobs of the next step."""
        limit = self._order.limit
        return self._pace.most if limit is None else min(self._pace.most, limit - self.done)

    def _paced(self, keys: QueueKeys, hits: list[Hit]) -> Talk[int]:
        """Act on these jobs when the rate allows it; returns on how many."""
        yield from self._pace.wait_for(len(hits))
        done = yield from self._act(keys, hits)
        self._pace.done()
        return done

    def _act(self, keys: QueueKeys, hits: list[Hit]) -> Talk[int]:
        order = self._order
        if order.act in ("replay", "purge"):
            return (yield from self._act_on_dead(keys, hits))
        jobs, chosen = [hit.key for hit in hits], Chosen(order.query.states, order.until_ms)
        if order.act == "run":
            return (yield from ask(verbs.jobs.run_now(keys, jobs, chosen))).count(1)
        cancel = verbs.jobs.cancel(keys, jobs, self._app.lifetimes, order.reason, chosen)
        answers = yield from ask(cancel)
        return sum(answer in (CANCELLED, ASKED) for answer in answers)

    def _act_on_dead(self, keys: QueueKeys, hits: list[Hit]) -> Talk[int]:
        """The search finds only those that had died when the operation was planned: one that dies again later, after it
        was replayed, has a later entry."""
        if self._order.act == "purge":
            return (yield from ask(verbs.dead.forget(keys, [hit.mark for hit in hits])))
        changes = yield from self._changes(keys, hits)
        if changes is not None:
            hits = [
                hit for hit in hits if hit.mark in changes
            ]  # the others have no arguments that can be read
        return (yield from put_back(keys, [hit.mark for hit in hits], changes or {})).count(1)

    def _changes(self, keys: QueueKeys, hits: list[Hit]) -> Talk[Changes | None]:
        """The new arguments of these jobs; None when they keep theirs. Raises FennelqError when they do not fit."""
        if self._changing is None:
            return None
        calls, changes = (
            (yield from ask_all(verbs.dead.call(keys, hit.key) for hit in hits)),
            dict[str, Change](),
        )
        for hit, call in zip(hits, calls, strict=True):
            try:
                change = None if call is None else self._changing.change(call)
            except FennelqError as error:
                raise FennelqError(f"{keys.queue}:{hit.key}: {error}") from error
            if change is not None:
                changes[hit.mark] = change
        return changes


def act_in(word: str) -> Act:
    """The act of this name; raises InvalidFilter for one that only a later version knows."""
    for act in get_args(Act):
        if act == word:
            return act  # type: ignore[no-any-return]
    raise InvalidFilter(f"only a later version of fennelq can perform {word[:40]!r}")
