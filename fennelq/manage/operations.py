"""Operations on all jobs that match a filter, which outlive the process that performs them.

An operation has a record in Redis: what it does, to which jobs, up to which moment, how far it has come, and when its
performer was last there. Each step acts on a page of jobs and then reports the cursor. If a performer is killed between
the two, the next one repeats the step, and finds that these jobs have moved on: no job gets the act twice.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys
from fennelq.broker.talk import Finds, Replies, Talk, ask
from fennelq.broker.verb import Word
from fennelq.broker.verbs.operations import Claim, Wish
from fennelq.broker.verbs.search import Criteria
from fennelq.errors import BrokerUnavailable, InvalidFilter, OperationBusy, UnknownOperation
from fennelq.manage.acting import Act, Order, Work, act_in, narrowed
from fennelq.manage.choices import check_choice
from fennelq.manage.finding import At, Met, OnSearch, Search, SearchProgress, read_filter
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation
from fennelq.manage.pace import Pace
from fennelq.manage.pausing import this_user
from fennelq.manage.queues import OnProgress
from fennelq.model.checks import check_count, check_line, check_reason, valid_name
from fennelq.model.job import JobInfo
from fennelq.model.query import parse

_BEAT: Final = 5.0
"""Seconds after which a performer reports even if it has found no job."""
_SAMPLES: Final = 5
_BEFORE_ITS_PLAN: Final = (
    "the clock of the server was set back to before the plan, so jobs sent since look older than it"
)
_DIGITS: Final = 14
"""The most digits of a number in a record: milliseconds since the epoch need no more for a thousand years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationPlan:
    """What an operation would do."""

    act: Act
    where: str
    """The filter, with its times as moments, and with the states of the jobs on which it would act."""
    until: datetime
    """Jobs that were sent after this moment are left alone."""
    total: int
    """The number of jobs."""
    samples: list[JobInfo]
    """Some of them."""
    problem: str = ""
    """Why jobs that match are not counted: a queue could not be searched, or the clock of the server was set back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationInfo:
    """An operation on many jobs, at one moment."""

    id: str
    act: str
    where: str
    until: datetime
    """Jobs that were sent after this moment are left alone."""
    state: str
    """running, stopped, done or failed."""
    who: str
    """The user who began it, and the host."""
    reason: str
    limit: int | None
    total: int
    """The number of jobs when it was planned."""
    done: int
    """The jobs on which it has acted. After a performer was killed, the number may be wrong by up to a hundred."""
    passed: int
    """The jobs that were found, and had moved on before it acted."""
    by: str
    """The process that performs it, or has done so last; empty before."""
    begun: datetime
    beat: datetime | None
    """When its performer last reported."""
    ended: datetime | None
    problem: str
    """Why the operation could not act on a queue, or on any."""
    rate: float | None = None
    """The most jobs per second; None when that is unbounded."""


# Defined here, because inside the class `list` is a method.
Infos = list[JobInfo]
OperationInfos = list[OperationInfo]


class OperationTalks(Family):
    """The operations on many jobs."""

    _attribute = "operations"

    @Operation
    def plan(
        self, act: Act, where: str, *, everything: bool = False, progress: OnSearch | None = None
    ) -> Talk[OperationPlan]:
        """Find the jobs on which an operation would act. `act` is "cancel", "run" (jobs that are due later run now),
        "replay" (dead jobs go back) or "purge" (dead jobs are removed). Without a filter, `everything=True` is
        required. Raises InvalidFilter."""
        check_choice("act", act, Act)
        asked = yield from read_filter(where)
        if not asked and not everything:
            raise InvalidFilter(
                "an empty filter selects every job of the app: write one, or pass everything=True"
            )
        query, now_ms = narrowed(act, asked), (yield from ask(verbs.server.now()))
        search, met = Search(self._app, Criteria(query, now_ms)), Met(query, _SAMPLES)
        total, samples = (yield from search.total()) if progress else 0, Infos()
        pages = Finds(search.pages())
        while (page := (yield from pages.next())) is not None:
            met.found += len(page.hits)
            if page.hits and len(samples) < _SAMPLES:
                samples += yield from met.records(page.keys, page.hits[: _SAMPLES - len(samples)])
            if progress:
                progress(SearchProgress(search.looked, total, met.found, search.unreadable))
        return OperationPlan(
            act=act,
            where=str(query),
            until=clock.from_ms(now_ms),
            total=met.found,
            samples=samples,
            problem=str(search.problem or "") or _ahead_of_the_clock(search.ahead),
        )

    @Operation
    def begin(
        self,
        plan: OperationPlan,
        *,
        limit: int | None = None,
        rate: float | None = None,
        reason: str = "cancelled",
        who: str | None = None,
    ) -> Talk[OperationInfo]:
        """Record an operation with this plan, on at most `limit` jobs, and at most `rate` per second. `resume` performs
        it. `who` is the user and the host by default."""
        check_reason("reason", reason)
        if limit is not None:
            check_count("limit", limit)
        Pace(rate)  # raises an error for a rate that is not valid
        if who:
            check_line("who", who)
        operation = secrets.token_hex(4)
        fields: dict[str, Word] = {
            "act": plan.act,
            "where": plan.where,
            "until": round(plan.until.timestamp() * 1000),
            "total": plan.total if limit is None else min(limit, plan.total),
            "limit": "" if limit is None else limit,
            "rate": "" if rate is None else f"{rate:g}",
            "reason": reason,
            "who": this_user() if who is None else who,
        }
        yield from ask(verbs.operations.op_begin(self._keys, operation, fields))
        return (yield from self._known(operation))

    @Operation
    def resume(self, operation: str, progress: OnProgress | None = None) -> Talk[OperationInfo]:
        """Perform an operation from its cursor on, until it is done or is stopped. Returns the operation as it is then.

        Raises OperationBusy while another process performs it, and UnknownOperation. An operation that is done does not
        change.
        """
        performer = f"{this_user()} {os.getpid()} {secrets.token_hex(3)}"
        claim = yield from self._perform(operation, performer, "claim")
        if claim.word == "busy":
            raise OperationBusy(operation, claim.fields.get("by", ""))
        if claim.word != "yours":
            return _info(operation, claim.fields)
        return (yield from self._work(operation, performer, claim.fields, progress))

    @Operation
    def stop(self, operation: str) -> Talk[OperationInfo]:
        """Stop an operation, after it has finished the jobs on which it acts now. Raises UnknownOperation."""
        yield from ask(verbs.operations.op_stop(self._keys, _checked(operation)))
        return (yield from self._known(operation))

    @Operation
    def get(self, operation: str) -> Talk[OperationInfo | None]:
        """An operation; None when it is unknown, or ended more than thirty days ago."""
        fields = yield from ask(verbs.operations.record(self._keys, _checked(operation)))
        return _info(operation, fields) if fields else None

    @Operation
    def list(self, limit: int = 100) -> Talk[OperationInfos]:
        """The operations of the last thirty days, the newest first, at most `limit`."""
        check_count("limit", limit)
        ids = yield from ask(verbs.operations.newest(self._keys, limit))
        every: Replies = (yield [verbs.operations.record(self._keys, one) for one in ids]) if ids else []
        for reply in every:
            if isinstance(reply, BrokerUnavailable):
                raise reply
        # Skip a record that cannot be read.
        return [
            _info(one, fields)
            for one, fields in zip(ids, every, strict=True)
            if fields and not isinstance(fields, Exception)
        ]

    @property
    def _keys(self) -> AppKeys:
        return AppKeys(self._app.namespace)

    def _known(self, operation: str) -> Talk[OperationInfo]:
        fields = yield from ask(verbs.operations.record(self._keys, operation))
        if not fields:
            raise UnknownOperation(operation)
        return _info(operation, fields)

    def _perform(
        self, operation: str, performer: str, wish: Wish, fields: Mapping[str, Word] | None = None
    ) -> Talk[Claim]:
        step = verbs.operations.op_perform(self._keys, _checked(operation), performer, wish, fields)
        claim = yield from ask(step)
        if claim.word == "unknown":
            raise UnknownOperation(operation)
        return claim

    def _work(
        self, operation: str, performer: str, fields: Mapping[str, str], progress: OnProgress | None
    ) -> Talk[OperationInfo]:
        order = _order(fields)
        if (yield from ask(verbs.server.now())) < order.until_ms:
            claim = yield from self._perform(operation, performer, "failed", {"problem": _BEFORE_ITS_PLAN})
            return _info(operation, claim.fields)
        work = Work(
            self._app,
            order,
            At.from_text(fields.get("cursor", "")),
            done=_number(fields, "done") or 0,
            passed=_number(fields, "passed") or 0,
        )
        pages, reported = Finds(work.pages()), clock.monotonic()
        while (done := (yield from pages.next())) is not None:
            if done or clock.monotonic() - reported > _BEAT:
                reported = clock.monotonic()
                claim = yield from self._perform(operation, performer, "go_on", _progress(work))
                if claim.word != "yours":
                    return _info(operation, claim.fields)
            if progress:
                progress(work.done)
        wish: Wish = "failed" if work.problem else "done"
        claim = yield from self._perform(operation, performer, wish, _progress(work))
        return _info(operation, claim.fields)


class Operations(OperationTalks, Awaiting):
    """Operations on all jobs that match a filter. They outlive the process that performs them."""


class BlockingOperations(OperationTalks, Blocking):
    """Operations on all jobs that match a filter, for code without an event loop: `app.sync.operations`."""


def _ahead_of_the_clock(jobs: int) -> str:
    """An operation leaves jobs alone that are sent after its plan. By the clock, those from before a step back are."""
    if not jobs:
        return ""
    return (
        f"the clock of the server was set back, and by this clock jobs will be sent only later ({jobs:,}): they are "
        "left alone. Wait until then, or name them by their ids"
    )


def _checked(operation: str) -> str:
    return valid_name("operation", operation)


def _order(fields: Mapping[str, str]) -> Order:
    query = parse(fields.get("where", ""), clock.from_ms(clock.wall_ms()), bounded=False)
    if not query:
        raise InvalidFilter(
            "the record of the operation has no filter: it was changed by hand, and cannot be performed"
        )
    # Without its bound, the operation acts on no jobs: otherwise it would act on jobs that were sent later.
    until = _number(fields, "until") or 0
    reason, limit = fields.get("reason", "cancelled"), _number(fields, "limit")
    return Order(act_in(fields.get("act", "")), query, until, reason, limit, _rate(fields))


def _progress(work: Work) -> dict[str, Word]:
    # After a problem, a later performer begins anew: what could not be read was passed over.
    cursor = "" if work.problem else work.at.to_text()
    fields: dict[str, Word] = {"cursor": cursor, "done": work.done, "passed": work.passed}
    return fields | ({"problem": str(work.problem)} if work.problem else {})


def _number(fields: Mapping[str, str], name: str) -> int | None:
    """A number of a record; None when it is missing, or was changed by hand."""
    text = fields.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def _rate(fields: Mapping[str, str]) -> float | None:
    """The rate of a record; None when there is none, or it was changed by hand to something that is none."""
    try:
        rate = float(fields.get("rate", ""))
    except ValueError:
        return None
    return rate if 0 < rate < math.inf else None


def _info(operation: str, fields: Mapping[str, str]) -> OperationInfo:
    def moment(name: str) -> datetime | None:
        ms = _number(fields, name)
        return clock.from_ms(ms) if ms else None

    return OperationInfo(
        id=operation,
        act=fields.get("act", ""),
        where=fields.get("where", ""),
        until=moment("until") or clock.from_ms(0),
        state=fields.get("state", ""),
        who=fields.get("who", ""),
        reason=fields.get("reason", ""),
        limit=_number(fields, "limit"),
        total=_number(fields, "total") or 0,
        done=_number(fields, "done") or 0,
        passed=_number(fields, "passed") or 0,
        by=fields.get("by", ""),
        begun=moment("begun") or clock.from_ms(0),
        beat=moment("beat"),
        ended=moment("ended"),
        problem=fields.get("problem", ""),
        rate=_rate(fields),
    )
