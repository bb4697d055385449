"""The stream of events of a job: its status and its progress, as Server-Sent Events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Final

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fennelq.errors import FennelqError, ResultExpired
from fennelq.manage import documents
from fennelq.manage.ends import of_ended
from fennelq.model.job import Status, split_id
from fennelq.web.http.call import Call
from fennelq.web.http.jobs import unknown
from fennelq.web.http.writing import written
from fennelq.web.looks import PATIENCE
from fennelq.web.places import Places

_LOOK: Final = 5.0
"""Seconds between two looks at the status. Progress and the end arrive at once."""


async def job_events(call: Call) -> Response:
    """Follow a job: an event `status` when it changes, `progress`, and `end` with the result."""
    job = call.names["job"]
    split_id(job)
    status = await _status(call, job)
    if status is Status.UNKNOWN:
        raise unknown(job)
    return _Stream(call.office.streams, _events(call, job, status))


class _Stream(StreamingResponse):
    """A stream, which has a place as long as it goes on."""

    def __init__(self, places: Places, events: AsyncGenerator[bytes]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events, self._places = events, places
        places.take()  # here, so that a call without a place gets a problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. A client that has left before the first one never begins to read them."""
        try:
            if scope["method"] == "HEAD":
                await Response(headers=self.headers)(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)
        finally:
            self._places.give_back()
            await self._events.aclose()


async def _events(call: Call, job: str, status: Status) -> AsyncGenerator[bytes]:
    yield _event("status", {"id": job, "status": status})
    reports = call.app.result(job).watch()
    async with aclosing(reports):
        report = asyncio.ensure_future(anext(reports, None))
        closing = asyncio.ensure_future(call.office.closing.wait())
        try:
            while not closing.done():
                await asyncio.wait([report, closing], timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
                if report.done():
                    progress = report.result()
                    if progress is None:
                        break
                    yield _event("progress", documents.of_progress(progress))
                    report = asyncio.ensure_future(anext(reports, None))
                    continue
                with suppress(FennelqError, TimeoutError):  # the next look may find Redis again
                    if (now := await _status(call, job)) is not status:
                        status = now
                        yield _event("status", {"id": job, "status": status})
                yield b": still there\n\n"
        except FennelqError:
            return  # Redis was away for too long: a client connects again after a stream without an `end`
        finally:
            for one in (report, closing):
                one.cancel()
            await asyncio.gather(report, closing, return_exceptions=True)
    if not call.office.closing.is_set():
        yield _event("end", await _end(call, job))


async def _end(call: Call, job: str) -> dict[str, Any]:
    """How it ended; the result only for users who may see it."""
    try:
        async with asyncio.timeout(PATIENCE):
            ended = await call.app.client.waiting.look(job)
            found = {"id": job, "status": await _status(call, job)} if ended is None else of_ended(job, ended)
    except ResultExpired:
        found = {"id": job, "status": await _status(call, job)}
    except (FennelqError, TimeoutError):
        return {"id": job, "status": Status.UNKNOWN}
    if not call.can("see_arguments"):
        found.pop("result", None)
    return found


async def _status(call: Call, job: str) -> Status:
    async with asyncio.timeout(PATIENCE):
        return await call.app.result(job).status()


def _event(kind: str, value: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), written(value))
