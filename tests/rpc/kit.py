"""A client of the gRPC server."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any, cast

import grpc
import pytest

from fennelq.grpc import fennelq_pb2 as pb
from fennelq.grpc import fennelq_pb2_grpc as stubs

Metadata = tuple[tuple[str, str], ...]


class Client:
    """The stubs, with the metadata of a user."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata = ()) -> None:
        self.channel, self.metadata = channel, metadata
        made = cast("Any", stubs)
        self.jobs: Any = made.JobsStub(channel)
        self.queues: Any = made.QueuesStub(channel)

    async def enqueue(self, task: str = "shop:welcome", *args: Any, **more: Any) -> pb.EnqueueReply:
        """Send a job."""
        given = pb.EnqueueRequest(task=task, args=json.dumps(args).encode() if args else b"", **more)
        reply: pb.EnqueueReply = await self.jobs.Enqueue(given, metadata=self.metadata)
        return reply


async def refused(call: Awaitable[Any]) -> grpc.StatusCode:
    """The code with which a call is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    code: grpc.StatusCode = caught.value.code()
    assert caught.value.details()
    return code
