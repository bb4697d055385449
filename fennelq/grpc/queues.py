"""The service Queues."""

from __future__ import annotations

import asyncio
from typing import Final

from grpc import StatusCode

from fennelq.grpc import fennelq_pb2 as pb
from fennelq.grpc.calls import Call
from fennelq.grpc.codes import Refused
from fennelq.manage.queues.info import QueueInfo
from fennelq.model.pause import QueueSide

_PATIENCE: Final = 2.0
_SIDES: Final[dict[str, QueueSide | None]] = {"": None, "consume": "consume", "enqueue": "enqueue"}


async def list_queues(call: Call, request: pb.ListQueuesRequest) -> pb.ListQueuesReply:
    """Every queue."""
    del request
    async with asyncio.timeout(_PATIENCE):
        infos = await call.app.queues.list()
    return pb.ListQueuesReply(queues=map(_queue, infos))


async def pause(call: Call, request: pb.PauseRequest) -> pb.Queue:
    """Pause a queue."""
    if request.only not in _SIDES:
        raise Refused(StatusCode.INVALID_ARGUMENT, "only: consume, enqueue, or empty for both")
    only = _SIDES[request.only]
    async with call.recorded("queue pause", target=request.name) as record:
        async with asyncio.timeout(_PATIENCE):
            found = await call.app.queues.pause(request.name, only=only, why=request.why, who=call.who)
        record.ended(outcome=str(found))
    return await _info(call, request.name)


async def resume(call: Call, request: pb.ResumeRequest) -> pb.Queue:
    """End the pause of a queue."""
    async with call.recorded("queue resume", target=request.name) as record:
        async with asyncio.timeout(_PATIENCE):
            before = await call.app.queues.resume(request.name)
        record.ended(outcome="resumed" if before else "was not paused", before=str(before or ""))
    return await _info(call, request.name)


async def _info(call: Call, name: str) -> pb.Queue:
    async with asyncio.timeout(_PATIENCE):
        return _queue(await call.app.queues.info(name))


def _queue(info: QueueInfo) -> pb.Queue:
    return pb.Queue(
        name=info.name,
        waiting=info.waiting + info.in_lines,
        running=info.running,
        scheduled=info.scheduled,
        retry=info.retry,
        dead=info.dead,
        paused=info.paused is not None,
    )
