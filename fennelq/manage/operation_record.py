"""The record of an operation in Redis: what it is, and how far it has come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from fennelq import clock
from fennelq.broker.verb import Word
from fennelq.errors import ConfigurationError, InvalidFilter
from fennelq.manage.acting import Order, Work, act_in
from fennelq.manage.canary import CANARY_TIMEOUT
from fennelq.manage.dead.new_arguments import Written
from fennelq.model.query import parse

_DIGITS: Final = 14
"""The most digits of a number in a record: milliseconds since the epoch need no more for a thousand years."""


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
    canary: int | None = None
    """So many jobs of a replay go back first, and their ends decide about the others; None: all at once."""
    arguments: tuple[str, ...] = ()
    """The names of the arguments that a replay changes."""
    needs_code: bool = False
    """Whether its performer must have the code of the tasks, to check the new arguments."""


def order_in(fields: Mapping[str, str]) -> Order:
    """What the operation does. Raises InvalidFilter for a record that was damaged by hand."""
    query = parse(fields.get("where", ""), clock.from_ms(clock.wall_ms()), bounded=False)
    if not query:
        raise InvalidFilter(
            "the record of the operation has no filter: it was changed by hand, and cannot be performed"
        )
    # Without its bound, the operation acts on no jobs: otherwise it would act on jobs that were sent later.
    until = number_in(fields, "until") or 0
    reason, limit = fields.get("reason", "cancelled"), number_in(fields, "limit")
    return Order(
        act_in(fields.get("act", "")),
        query,
        until,
        reason,
        limit,
        _positive(fields, "rate"),
        number_in(fields, "canary"),
        _positive(fields, "canary_timeout") or CANARY_TIMEOUT,
        _read_arguments(fields),
        fields.get("anyway") == "1",
        fields.get("who", ""),
    )


def progress_of(work: Work) -> dict[str, Word]:
    """How far an operation has come, for a later performer."""
    # After a problem, a later performer begins anew: what could not be read was passed over.
    cursor = "" if work.problem else work.at.to_text()
    fields: dict[str, Word] = {"cursor": cursor, "done": work.done, "passed": work.passed}
    if work.canary:
        fields["canary_state"] = work.canary
    if work.is_checked:
        fields["checked"] = 1
    return fields | ({"problem": work.problem} if work.problem else {})


def written(arguments: Mapping[str, Any]) -> bytes:
    """New arguments as they are recorded: the text of a command line stays one."""
    values = {
        name: {"text": one.text} if isinstance(one, Written) else {"value": one}
        for name, one in arguments.items()
    }
    try:
        return orjson.dumps(values)
    except TypeError as error:
        raise ConfigurationError(f"the new arguments are not JSON: {error}") from None


def _read_arguments(fields: Mapping[str, str]) -> dict[str, Any] | None:
    """The new arguments of a record; None when the jobs keep theirs."""
    text = fields.get("arguments", "")
    if not text:
        return None
    try:
        found: dict[str, dict[str, Any]] = orjson.loads(text)
        return {
            name: Written(str(one["text"])) if "text" in one else one["value"] for name, one in found.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InvalidFilter(
            "the record of the operation has no readable arguments: it was changed by hand, and cannot be performed"
        ) from None


def number_in(fields: Mapping[str, str], name: str) -> int | None:
    """A number of a record; None when it is missing, or was changed by hand."""
    text = fields.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def _positive(fields: Mapping[str, str], name: str) -> float | None:
    """A rate or a time of a record; None when there is none, or it was changed by hand to something that is none."""
    try:
        found = float(fields.get(name, ""))
    except ValueError:
        return None
    return found if 0 < found < math.inf else None


def info_of(operation: str, fields: Mapping[str, str]) -> OperationInfo:
    """The operation, as its record has it."""

    def moment(name: str) -> datetime | None:
        ms = number_in(fields, name)
        return clock.from_ms(ms) if ms else None

    return OperationInfo(
        id=operation,
        act=fields.get("act", ""),
        where=fields.get("where", ""),
        until=moment("until") or clock.from_ms(0),
        state=fields.get("state", ""),
        who=fields.get("who", ""),
        reason=fields.get("reason", ""),
        limit=number_in(fields, "limit"),
        total=number_in(fields, "total") or 0,
        done=number_in(fields, "done") or 0,
        passed=number_in(fields, "passed") or 0,
        by=fields.get("by", ""),
        begun=moment("begun") or clock.from_ms(0),
        beat=moment("beat"),
        ended=moment("ended"),
        problem=fields.get("problem", ""),
        rate=_positive(fields, "rate"),
        canary=number_in(fields, "canary"),
        arguments=_names_of(fields),
        needs_code=bool(fields.get("arguments")) and fields.get("anyway") != "1",
    )


def _names_of(fields: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the arguments that change. Their values may be secret."""
    try:
        return tuple(_read_arguments(fields) or ())
    except InvalidFilter:
        return ("?",)
