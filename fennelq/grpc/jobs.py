"""The service Jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final, cast

from google.protobuf.timestamp_pb2 import Timestamp
from grpc import StatusCode
from pydantic_core import to_json

from fennelq.errors import FennelqError, ResultExpired
from fennelq.grpc import fennelq_pb2 as pb
from fennelq.grpc.calls import PATIENCE, Call, Malformed
from fennelq.grpc.codes import Refused, code_of, text_of
from fennelq.manage import documents
from fennelq.manage.deleting import deleted
from fennelq.manage.ends import of_ended
from fennelq.manage.jobs import JobAnswer
from fennelq.manage.sending import Caller, Where, described, read_call, read_json, sent
from fennelq.model.job import Status, split_id
from fennelq.waiting.looks import Ended

_LONGEST: Final = 60.0
_MOST: Final = 10_000
_AT_ONCE: Final = 100
_BYTES_AT_ONCE: Final = 1 << 20
"""A page of a stream has at most so many jobs, and not much more than so many bytes: a message may have a megabyte."""
_LOOK: Final = 5.0
_HIDDEN: Final = ("arguments", "headers", "key")


async def enqueue(call: Call, request: pb.EnqueueRequest) -> pb.EnqueueReply:
    """Send a job."""
    if not call.user.can_send(request.task):
        raise Refused(StatusCode.PERMISSION_DENIED, f"{call.user.name} may not send {request.task[:200]}")
    given: dict[str, Any] = {"task": request.task}
    for name, raw in (("args", request.args), ("kwargs", request.kwargs), ("options", request.options)):
        if raw:
            given[name] = read_json(raw)
    read, where = read_call(given), Where()
    ready = described(call.app, read, Caller(call.user.name, request.request_id), where)
    async with asyncio.timeout(PATIENCE):
        await call.door.queues.check(read.get("options", {}).get("queue"), where)
        handle = await sent(call.app, ready)
    return pb.EnqueueReply(id=handle.id, deduplicated=handle.deduplicated)


async def enqueue_many(call: Call, requests: AsyncIterator[Any]) -> pb.EnqueueManyReply:
    """Send many jobs. One that is refused does not stop the others."""
    answers: list[pb.EnqueueAnswer] = []
    page: list[Any] = []
    size = 0
    async for request in requests:
        page.append(request)
        size += 0 if isinstance(request, Malformed) else request.ByteSize()
        if len(answers) + len(page) > _MOST:
            raise Refused(
                StatusCode.INVALID_ARGUMENT, f"send {_MOST:,} jobs at a time: {len(answers):,} were sent"
            )
        if len(page) == _AT_ONCE or size >= _BYTES_AT_ONCE:
            answers += await _answers(call, page)
            page, size = [], 0
    return pb.EnqueueManyReply(answers=answers + await _answers(call, page))


async def _answers(call: Call, page: list[Any]) -> list[pb.EnqueueAnswer]:
    return list(await asyncio.gather(*(_answer(call, request) for request in page)))


async def _answer(call: Call, request: Any) -> pb.EnqueueAnswer:
    try:
        if isinstance(request, Malformed):
            raise Refused(StatusCode.INVALID_ARGUMENT, "the message cannot be read")
        reply = await enqueue(call, request)
    except (FennelqError, TimeoutError) as error:
        return pb.EnqueueAnswer(code=code_of(error).value[0], message=text_of(error))
    return pb.EnqueueAnswer(id=reply.id, deduplicated=reply.deduplicated)


async def get(call: Call, request: pb.JobRequest) -> pb.Job:
    """Everything known about a job."""
    split_id(request.id)
    async with asyncio.timeout(PATIENCE):
        info = await call.app.jobs.info(request.id)
    if info is None:
        raise _unknown(request.id)
    document = documents.of_job(info, call.app.redaction)
    if not call.user.can("see_arguments"):
        document = {name: value for name, value in document.items() if name not in _HIDDEN}
    return pb.Job(
        id=info.id,
        task=info.task,
        queue=info.queue,
        status=info.status,
        tries=info.tries,
        enqueued_at=_timestamp(info.enqueued_at),
        started_at=_timestamp(info.started_at),
        ended_at=_timestamp(info.ended_at),
        json=to_json(document, fallback=str),
    )


async def wait(call: Call, request: pb.WaitRequest) -> pb.Result:
    """Wait for the end of a job. When the time is over, the status of the job is returned without a value."""
    split_id(request.id)
    # gRPC cancels the handler at the deadline of the call.
    seconds = min(_LONGEST, request.seconds) if request.seconds > 0 else _LONGEST
    try:
        with call.door.waits.taking():
            ended = await _end_within(call, request.id, seconds)
        if ended is not None:
            return _result(of_ended(request.id, ended))
    except ResultExpired:
        if await call.app.jobs.info(request.id) is None:
            raise _unknown(request.id) from None
        raise Refused(
            StatusCode.FAILED_PRECONDITION, f"the result of {request.id} is not kept any more (result_ttl)"
        ) from None
    return pb.Result(id=request.id, status=await _status(call, request.id))


async def _end_within(call: Call, job: str, seconds: float) -> Ended | None:
    """How the job has ended; None when it goes on, or when the server is to end."""
    ending = asyncio.ensure_future(call.app.client.end_within(job, seconds))
    closing = asyncio.ensure_future(call.door.closing.wait())
    try:
        async with asyncio.timeout(seconds + PATIENCE):
            await asyncio.wait([ending, closing], return_when=asyncio.FIRST_COMPLETED)
        return ending.result() if ending.done() else None
    finally:
        ending.cancel()
        closing.cancel()
        await asyncio.gather(ending, closing, return_exceptions=True)


async def cancel(call: Call, request: pb.CancelRequest) -> pb.CancelReply:
    """Cancel a job; one that runs is asked to stop."""
    split_id(request.id)
    async with call.recorded("job cancel", target=request.id) as record:
        answer = await call.app.jobs.cancel(request.id, request.reason or "cancelled", wait=0)
        record.ended(int(answer.done), answer.text)
    if not answer.known:
        raise _unknown(request.id)
    if not answer.done and "stop" not in answer.text:
        raise Refused(StatusCode.FAILED_PRECONDITION, f"{request.id}: {answer.text}")
    return _reply(answer)


async def delete(call: Call, request: pb.JobRequest) -> pb.CancelReply:
    """Cancel a job that has not started."""
    split_id(request.id)
    async with call.recorded("job cancel", target=request.id, filter="not started") as record:
        answer = await call.app.client.converse(deleted(call.app, request.id))
        record.ended(int(answer.done), answer.text)
    if not answer.known:
        raise _unknown(request.id)
    if not answer.done:
        raise Refused(StatusCode.FAILED_PRECONDITION, f"{request.id}: {answer.text}")
    return _reply(answer)


async def watch(call: Call, request: pb.JobRequest) -> AsyncGenerator[pb.Event]:
    """Follow a job."""
    split_id(request.id)
    status = await _status(call, request.id)
    if status is Status.UNKNOWN:
        raise _unknown(request.id)
    with call.door.streams.taking():
        async with aclosing(_events(call, request.id, status)) as events:
            async for event in events:
                yield event
    if call.door.closing.is_set():
        raise Refused(StatusCode.UNAVAILABLE, "this server ends: call again, and another one answers")
    yield await _end(call, request.id)


async def _events(call: Call, job: str, status: Status) -> AsyncGenerator[pb.Event]:
    """The events until the job has ended, or the server is to end."""
    yield pb.Event(status=status)
    reports = call.app.result(job).watch()
    async with aclosing(reports):
        report = asyncio.ensure_future(anext(reports, None))
        closing = asyncio.ensure_future(call.door.closing.wait())
        try:
            while not closing.done():
                await asyncio.wait([report, closing], timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
                if report.done():
                    if (progress := report.result()) is None:
                        break
                    shown = pb.Progress(done=progress.done, total=progress.total, note=progress.note)
                    yield pb.Event(progress=shown)
                    report = asyncio.ensure_future(anext(reports, None))
                elif not closing.done() and (now := await _status(call, job)) is not status:
                    status = now
                    yield pb.Event(status=status)
        finally:
            for one in (report, closing):
                one.cancel()
            await asyncio.gather(report, closing, return_exceptions=True)


async def _end(call: Call, job: str) -> pb.Event:
    status = await _status(call, job)
    try:
        ended = await call.app.client.waiting.look(job)
    except ResultExpired:
        ended = None
    if ended is None:
        return pb.Event(status=status, result=pb.Result(id=job, status=status))
    document = of_ended(job, ended)
    if not call.user.can("see_arguments"):
        document.pop("result", None)
    return pb.Event(status=document["status"], result=_result(document))


def _result(document: dict[str, Any]) -> pb.Result:
    error = cast("dict[str, str]", document.get("error", {}))
    return pb.Result(
        id=document["id"],
        status=document["status"],
        value=to_json(document["result"]) if "result" in document else b"",
        error_type=error.get("type", ""),
        error_message=error.get("message", ""),
    )


def _reply(answer: JobAnswer) -> pb.CancelReply:
    return pb.CancelReply(id=answer.id, done=answer.done, answer=answer.text)


def _unknown(job: str) -> Refused:
    return Refused(StatusCode.NOT_FOUND, f"Redis has no record of {job}: it is unknown, or ended long ago")


async def _status(call: Call, job: str) -> Status:
    async with asyncio.timeout(PATIENCE):
        return await call.app.result(job).status()


def _timestamp(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    made = Timestamp()
    made.FromDatetime(moment)
    return made
