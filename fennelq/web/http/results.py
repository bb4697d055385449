"""Waits for the ends of jobs, and returns their results."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pydantic import Field

from fennelq.errors import ResultExpired
from fennelq.manage.ends import of_ended
from fennelq.model.job import Status, split_id
from fennelq.web.http.call import Answer, Call
from fennelq.web.http.forms import Query
from fennelq.web.http.problems import Gone
from fennelq.web.looks import PATIENCE
from fennelq.web.visit import NotFound

LONGEST: Final = 60.0


class WaitQuery(Query):
    """How long to wait."""

    wait: float = Field(default=0.0, ge=0, le=LONGEST, allow_inf_nan=False)
    """Seconds to wait for the end of the job."""


async def job_result(call: Call) -> Answer:
    """The result of a job, at once or when it has ended."""
    job, wait = call.names["job"], call.asking(WaitQuery).wait
    split_id(job)
    try:
        if wait:
            with call.office.waits.taking():
                ended = await call.unless_left(_ended(call, job, wait))
        else:
            ended = await _ended(call, job, 0)
    except ResultExpired:
        raise await _gone(call, job) from None
    if ended is None:
        return Answer({"id": job, "status": await _status(call, job)}, 202, {"Retry-After": "1"})
    return Answer(ended)


async def _ended(call: Call, job: str, wait: float) -> dict[str, Any] | None:
    client = call.app.client
    # Redis gets PATIENCE to reply, besides the time that the job takes.
    async with asyncio.timeout(wait + PATIENCE):
        ended = await (client.end_within(job, wait) if wait else client.waiting.look(job))
    return None if ended is None else of_ended(job, ended)


async def _gone(call: Call, job: str) -> Exception:
    if await call.app.jobs.info(job) is None:
        return NotFound(f"Redis has no record of {job}: it is unknown, or ended long ago (record_ttl).")
    return Gone(f"The result of {job} is not kept any more (result_ttl), or the task returns none.")


async def _status(call: Call, job: str) -> Status:
    async with asyncio.timeout(PATIENCE):
        return await call.app.result(job).status()
