"""The gRPC server."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from fennelq.errors import ConfigurationError
from fennelq.grpc import fennelq_pb2 as pb
from fennelq.grpc import jobs, queues
from fennelq.grpc.calls import Door, reader
from fennelq.web.passwords import Tokens

if TYPE_CHECKING:
    from fennelq.app import App

PORT: Final = 3368
LARGEST: Final = 1 << 20
"""Bytes of a message."""
_GRACE: Final = 5.0
"""Seconds that calls get to finish when the server is stopped."""
JOBS: Final = "fennelq.v1.Jobs"
QUEUES: Final = "fennelq.v1.Queues"
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_concurrent_streams", 1000),
    ("grpc.so_reuseport", 0),  # otherwise a second server takes some of the calls of the first one
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_time_ms", 60_000),
]


@dataclass(frozen=True)
class Tls:
    """The certificate of the server, and its key."""

    certificate: Path
    key: Path

    def credentials(self) -> grpc.ServerCredentials:
        """As gRPC takes them. Raises ConfigurationError when a file cannot be read, or does not have them."""
        try:
            pair = (self.key.read_bytes(), self.certificate.read_bytes())
            # gRPC itself would say only that the port cannot be used.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self.certificate, self.key, password=lambda: ""
            )
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"{self.certificate} and {self.key} are not a certificate and its key: {_why(error)}. Both must be "
                "PEM, and the key without a password"
            ) from None
        except OSError as error:
            raise ConfigurationError(f"{error.filename} cannot be read: {error.strerror}") from None
        return grpc.ssl_server_credentials([pair])


def _why(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key belongs to another certificate"
    return (error.reason or "they cannot be read").replace("_", " ").lower()


@asynccontextmanager
async def serving(
    app: App, address: str, *, tokens: Path | None = None, tls: Tls | None = None
) -> AsyncGenerator[tuple[grpc.aio.Server, int]]:
    """Serve until the block ends; yields the server and its port. Calls under way get some seconds to finish."""
    server = grpc.aio.server(options=_OPTIONS)
    door = Door(app, Tokens(tokens) if tokens else None)
    server.add_generic_rpc_handlers((_jobs(door), _queues(door)))
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    names = (JOBS, QUEUES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    try:
        port = (
            server.add_secure_port(address, tls.credentials()) if tls else server.add_insecure_port(address)
        )
    except RuntimeError as error:
        raise ConfigurationError(
            f"{address} cannot be used, perhaps because another server does: pass --port 0 for a free port ({error})"
        ) from None
    await server.start()
    for name in ("", JOBS, QUEUES):
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    try:
        yield server, port
    finally:
        door.closing.set()
        await checks.enter_graceful_shutdown()
        await server.stop(_GRACE)


def _jobs(door: Door) -> grpc.GenericRpcHandler:
    methods = {
        "Enqueue": _unary(door.unary("send", jobs.enqueue), pb.EnqueueRequest),
        "EnqueueMany": grpc.stream_unary_rpc_method_handler(
            door.gathering("send", jobs.enqueue_many), reader(pb.EnqueueRequest), _written
        ),
        "Get": _unary(door.unary("see", jobs.get), pb.JobRequest),
        "Wait": _unary(door.unary("see_arguments", jobs.wait), pb.WaitRequest),
        "Cancel": _unary(door.unary("cancel", jobs.cancel, changes=True), pb.CancelRequest),
        "Delete": _unary(door.unary("cancel", jobs.delete, changes=True), pb.JobRequest),
        "Watch": grpc.unary_stream_rpc_method_handler(
            door.stream("see", jobs.watch), reader(pb.JobRequest), _written
        ),
    }
    return grpc.method_handlers_generic_handler(JOBS, methods)


def _queues(door: Door) -> grpc.GenericRpcHandler:
    methods = {
        "List": _unary(door.unary("see", queues.list_queues), pb.ListQueuesRequest),
        "Pause": _unary(door.unary("pause", queues.pause, changes=True), pb.PauseRequest),
        "Resume": _unary(door.unary("pause", queues.resume, changes=True), pb.ResumeRequest),
    }
    return grpc.method_handlers_generic_handler(QUEUES, methods)


def _unary(answer: Any, kind: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(answer, reader(kind), _written)


def _written(message: Any) -> bytes:
    written: bytes = message.SerializeToString()
    return written
