"""Sends a job by gRPC, waits for its end and prints its result:

    fennelq token add billing --may see,see_arguments,send
    fennelq grpc --tokens tokens
    FENNELQ_TOKEN=fq_… python -m examples.clients.send_grpc shop.tasks:welcome '{"user_id": 42}'

In another language, generate the client from `fennelq/grpc/fennelq.proto`.
"""

from __future__ import annotations

import os
import sys
import uuid
from typing import Any, cast

import grpc

from fennelq.grpc import fennelq_pb2 as pb
from fennelq.grpc import fennelq_pb2_grpc as stubs


def main() -> int:
    """Send the call of the command line."""
    task, kwargs = sys.argv[1], (sys.argv[2] if len(sys.argv) > 2 else "{}")
    token = os.environ.get("FENNELQ_TOKEN", "")
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(os.environ.get("FENNELQ_GRPC", "127.0.0.1:3368")) as channel:
        jobs: Any = cast("Any", stubs).JobsStub(channel)
        request = pb.EnqueueRequest(task=task, kwargs=kwargs.encode(), request_id=str(uuid.uuid4()))
        try:
            sent = jobs.Enqueue(request, metadata=metadata, timeout=10)
            print(f"sent {sent.id}")
            result = jobs.Wait(pb.WaitRequest(id=sent.id, seconds=30), metadata=metadata, timeout=40)
        except grpc.RpcError as error:
            print(f"{error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    print(f"{result.status}: {result.value.decode() or result.error_message}")
    return 0 if result.status == "SUCCESS" else 1


if __name__ == "__main__":
    sys.exit(main())
