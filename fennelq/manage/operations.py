"""Operations on all jobs that match a filter, which outlive the process that performs them.

An operation has a record in Redis: what it does, to which jobs, up to which moment, how far it has come, and when its
performer was last there. Each step acts on a page of jobs and then reports the cursor. If a performer is killed between
the two, the next one repeats the step, and finds that these jobs have moved on: no job gets the act twice.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys
from fennelq.broker.talk import Finds, Replies, Talk, ask
from fennelq.broker.verb import Word
from fennelq.broker.verbs.operations import Claim, Wish
from fennelq.broker.verbs.search import Criteria
from fennelq.errors import (
    BrokerUnavailable,
    ConfigurationError,
    InvalidFilter,
    OperationBusy,
    UnknownOperation,
)
from fennelq.manage.acting import Act, Work, narrowed
from fennelq.manage.canary import CANARY_TIMEOUT
from fennelq.manage.choices import check_choice
from fennelq.manage.dead.replaying import checked_canary
from fennelq.manage.finding import At, Met, OnSearch, Search, SearchProgress, read_filter
from fennelq.manage.offered import Awaiting, Blocking, Family, Operation
from fennelq.manage.operation_record import OperationInfo as OperationInfo
from fennelq.manage.operation_record import info_of, number_in, order_in, progress_of, written
from fennelq.manage.pace import Pace
from fennelq.manage.queues.pausing import this_user
from fennelq.manage.queues.queues import OnProgress
from fennelq.model.checks import check_count, check_line, check_reason, valid_name
from fennelq.model.job import JobInfo
from fennelq.model.units import Seconds

BEAT: Final = 5.0
"""Seconds after which a performer reports even if it has found no job."""
_SAMPLES: Final = 5
_BEFORE_ITS_PLAN: Final = (
    "the clock of the server was set back to before the plan, so jobs sent since look older than it"
)


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
        canary: int | None = None,
        canary_timeout: Seconds = CANARY_TIMEOUT,
        arguments: Mapping[str, Any] | None = None,
        anyway: bool = False,
        reason: str = "cancelled",
        who: str | None = None,
    ) -> Talk[OperationInfo]:
        """Record an operation with this plan, on at most `limit` jobs, and at most `rate` per second. `resume` performs
        it. `who` is the user and the host by default.

        A replay may have a `canary`: so many jobs go back first, and the others stay dead if one of these dies as
        before, or does not end within `canary_timeout` seconds. `arguments` are new values of some arguments by name.
        If they do not fit one of the jobs, no job goes back. `anyway=True` changes also jobs whose tasks the app of the
        performer does not have, without a check.
        """
        check_reason("reason", reason)
        if limit is not None:
            check_count("limit", limit)
        Pace(rate)  # raises an error for a rate that is not valid
        timeout = checked_canary(canary, canary_timeout)
        if plan.act != "replay" and (canary is not None or arguments):
            raise ConfigurationError("only a replay may have canary= or arguments=")
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
            "canary": "" if canary is None else canary,
            "canary_timeout": f"{timeout:g}",
            "arguments": written(arguments) if arguments else "",
            "anyway": int(anyway),
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
            return info_of(operation, claim.fields)
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
        return info_of(operation, fields) if fields else None

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
            info_of(one, fields)
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
        return info_of(operation, fields)

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
        order = order_in(fields)
        if (yield from ask(verbs.server.now())) < order.until_ms:
            claim = yield from self._perform(operation, performer, "failed", {"problem": _BEFORE_ITS_PLAN})
            return info_of(operation, claim.fields)
        work = Work(
            self._app,
            order,
            At.from_text(fields.get("cursor", "")),
            done=number_in(fields, "done") or 0,
            passed=number_in(fields, "passed") or 0,
            canary=fields.get("canary_state", ""),
            checked=fields.get("checked") == "1",
        )
        pages, reported, state = Finds(work.pages()), clock.monotonic(), work.state
        while (done := (yield from pages.next())) is not None:
            if done or work.state != state or clock.monotonic() - reported > BEAT:
                reported, state = clock.monotonic(), work.state
                claim = yield from self._perform(operation, performer, "go_on", progress_of(work))
                if claim.word != "yours":
                    return info_of(operation, claim.fields)
            if progress:
                progress(work.done)
        wish: Wish = "failed" if work.problem else "done"
        claim = yield from self._perform(operation, performer, wish, progress_of(work))
        return info_of(operation, claim.fields)


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
