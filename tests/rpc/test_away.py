"""While Redis does not answer, calls end soon, with the code that tells a program to repeat them."""

from __future__ import annotations

import grpc
import pytest

from fennelq.grpc import fennelq_pb2 as pb
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.rpc.kit import Client, refused

Code = grpc.StatusCode

pytestmark = pytest.mark.usefixtures("impatient")


async def test_redis_away_is_unavailable_and_comes_back_by_itself(client: Client, server: Server) -> None:
    await aeventually(
        lambda: client.enqueue("shop:welcome", 1, request_id="first"), tolerate=(grpc.aio.AioRpcError,)
    )
    server.pause()
    try:
        assert await refused(client.enqueue("shop:welcome", 2, request_id="r")) is Code.UNAVAILABLE
        assert await refused(client.jobs.Get(pb.JobRequest(id="mail:nosuch"))) is Code.UNAVAILABLE
        assert await refused(client.queues.List(pb.ListQueuesRequest())) is Code.UNAVAILABLE
    finally:
        server.resume()
    await aeventually(
        lambda: client.enqueue("shop:welcome", 2, request_id="r"), tolerate=(grpc.aio.AioRpcError,)
    )
