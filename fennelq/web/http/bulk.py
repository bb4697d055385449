"""Sends many jobs at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from io import BytesIO
from itertools import islice
from typing import Any, Final

from fennelq.broker.dispatch import pages
from fennelq.errors import BrokerUnavailable, EnqueueFailed, FennelqError
from fennelq.manage.sending import (
    Caller,
    Described,
    Fault,
    Where,
    WrongCall,
    claimed,
    described,
    explained,
    of_other_calls,
    read_call,
    read_json,
)
from fennelq.redaction import is_array, is_object
from fennelq.web.http.bodies import LINES, media_of
from fennelq.web.http.call import Answer, Call
from fennelq.web.http.problems import OutcomeUnknown, problem_of
from fennelq.web.http.sending import check_may_send, key_of
from fennelq.web.looks import PATIENCE

MOST_JOBS: Final = 10_000
_AT_ONCE: Final = 100
"""Calls that are checked before other requests get their turn: some milliseconds."""


async def send_jobs(call: Call) -> Answer:
    """Send the calls in the body: one answer per call, in their order."""
    given = _calls(call)
    key = key_of(call)
    answers: list[Any] = [None] * len(given)
    jobs: list[tuple[int, Described]] = []
    for place, one in enumerate(given):
        if place and place % _AT_ONCE == 0:
            await asyncio.sleep(0)
        try:
            jobs.append((place, await _described(call, one, place, key)))
        except Exception as error:
            answers[place] = _problem(error)
    for page in pages(jobs, 1000):
        if not await _send(call, page, answers):
            break
    for place, one in jobs:  # Redis is away: the others need not wait for it as well
        answers[place] = answers[place] or _problem(TimeoutError(), one)
    created = sum(answer.get("deduplicated") is False for answer in answers)
    return Answer({"created": created, "answers": answers})


def _calls(call: Call) -> Sequence[object]:
    if media_of(call.request) in LINES:
        # Not by `split`: eight megabytes of short lines would take a hundred.
        lines = [_Line(line) for line in islice(filter(bytes.strip, BytesIO(call.body)), MOST_JOBS + 1)]
        if len(lines) > MOST_JOBS:
            raise _too_many("more than 10,000")
        return lines
    body = read_json(call.body)
    calls = body.get("jobs") if is_object(body) else body
    if not is_array(calls):
        raise WrongCall([Fault("/jobs", "send an object with the member jobs, which is a list of calls")])
    if len(calls) > MOST_JOBS:
        raise _too_many(f"{len(calls):,}")
    return calls


class _Line(bytes):
    """A line that is not read yet: one that cannot be read does not fail the others."""


def _too_many(number: str) -> WrongCall:
    return WrongCall(
        [Fault("/jobs", f"{number} jobs are too many for one request: send {MOST_JOBS:,} at a time")]
    )


async def _described(call: Call, given: object, place: int, key: str) -> Described:
    read = read_call(read_json(given) if isinstance(given, _Line) else given)
    check_may_send(call, read["task"])
    where = Where()
    if (queue := read.get("options", {}).get("queue")) is not None:
        async with asyncio.timeout(PATIENCE):
            await call.office.queues.check(queue, where)
    # Each call of a keyed request has a key of its own: that of the request, and its place.
    return described(call.app, read, Caller(call.user.name, key, place), where)


async def _send(call: Call, jobs: Sequence[tuple[int, Described]], answers: list[Any]) -> bool:
    """Send some of the jobs, and note the answer of each. Returns False when Redis is away."""
    try:
        async with asyncio.timeout(PATIENCE * 4):
            jobs = await _claimed(call, jobs, answers)
            handles: list[Any] = await _handles(call, [one for _, one in jobs])
    except (TimeoutError, BrokerUnavailable) as error:
        handles = [error] * len(jobs)
    others = await _reused(call, [one for _, one in jobs], handles)
    for (place, one), handle in zip(jobs, handles, strict=True):
        if isinstance(handle, Exception):
            answers[place] = _problem(explained(handle, one), one)
        elif (reused := others.get(one.job.id)) is not None:
            answers[place] = _problem(reused, one)
        else:
            status = 200 if handle.deduplicated else 201
            answers[place] = {"status": status, "id": handle.id, "deduplicated": handle.deduplicated}
    return not all(map(_is_away, handles))


async def _claimed(
    call: Call, jobs: Sequence[tuple[int, Described]], answers: list[Any]
) -> Sequence[tuple[int, Described]]:
    """The jobs whose Idempotency-Keys belong to no other call; the answers of the others are noted."""
    if not any(one.digest for _, one in jobs):
        return jobs
    errors = await call.app.client.converse(claimed(call.app, [one for _, one in jobs]))
    for (place, one), error in zip(jobs, errors, strict=True):
        if error is not None:
            answers[place] = _problem(error, one)
    return [one for one, error in zip(jobs, errors, strict=True) if error is None]


async def _reused(call: Call, jobs: Sequence[Described], handles: Sequence[Any]) -> dict[str, Exception]:
    """The errors of the jobs, by id, that exist already and were made by another call with the same key."""
    known = [
        one
        for one, handle in zip(jobs, handles, strict=True)
        if one.digest and getattr(handle, "deduplicated", False)
    ]
    if not known:
        return {}
    try:
        async with asyncio.timeout(PATIENCE):
            errors = await call.app.client.converse(of_other_calls(call.app, known))
    except (TimeoutError, BrokerUnavailable) as error:
        return {one.job.id: error for one in known}
    return {one.job.id: error for one, error in zip(known, errors, strict=True) if error is not None}


async def _handles(call: Call, jobs: Sequence[Described]) -> list[Any]:
    try:
        return list(await call.app.enqueue([one.job for one in jobs]))
    except EnqueueFailed as failed:
        return [failed.failures.get(place) or handle for place, handle in enumerate(failed.handles)]
    except FennelqError as error:
        if isinstance(error, BrokerUnavailable) or len(jobs) == 1:
            return [error] * len(jobs)
        refused = {job.id for job in getattr(error, "jobs", [])}
        return [error if one.job.id in refused else call.app.result(one.job.id) for one in jobs]


def _is_away(answer: object) -> bool:
    unavailable = isinstance(answer, BrokerUnavailable) and answer.retriable
    return isinstance(answer, TimeoutError) or unavailable


def _problem(error: Exception, sent: Described | None = None) -> dict[str, Any]:
    if _is_away(error) and sent is not None:
        error = OutcomeUnknown([sent.job.id])
    problem = problem_of(error, changing=True)
    return {"status": problem.kind.status, "problem": problem.document}
