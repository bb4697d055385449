"""Health: answers probes, whatever else connects to its port."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import closing

import pytest
from structlog.typing import EventDict

from fennelq.errors import ConfigurationError
from fennelq.model.exposition import Page
from fennelq.model.metrics import BUILD
from fennelq.worker.processes import health
from fennelq.worker.processes.health import Health
from tests.kit.waiting import aeventually

LIVE = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
async def answering() -> AsyncIterator[Health]:
    """A live worker that is not ready."""
    answering = Health("127.0.0.1:0", live=lambda: True, ready=lambda: False)
    await answering.start()
    yield answering
    answering.close()


async def asked(answering: Health, request: bytes) -> bytes:
    """Everything that is sent back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", answering.port)
    with closing(writer):
        writer.write(request)
        return await reader.read()


async def connected(answering: Health) -> socket.socket:
    connection = socket.socket()
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", answering.port))
    return connection


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (LIVE, b"200 OK", b"yes\n"),
        (b"GET /ready HTTP/1.1\r\n\r\n", b"503 Service Unavailable", b"no\n"),
        (b"HEAD /live?x=1 HTTP/1.0\r\n\r\n", b"200 OK", b"yes\n"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found", b"ask for /live or /ready\n"),
        (b"\xff\r\n\r\n", b"404 Not Found", b"ask for /live or /ready\n"),
    ],
)
async def test_a_probe_gets_one_answer_and_the_connection_is_closed(
    answering: Health, request_: bytes, status: bytes, body: bytes
) -> None:
    head, _, rest = (await asked(answering, request_)).partition(b"\r\n\r\n")
    assert head.splitlines()[0] == b"HTTP/1.1 " + status
    assert b"Content-Length: %d" % len(body) in head
    assert rest == body


async def test_a_page_of_metrics_has_its_type_and_its_length_in_bytes() -> None:
    async def page() -> Page:
        found = Page()
        found.add(BUILD, 1, "é")
        return found

    answering = Health("127.0.0.1:0", live=lambda: True, ready=lambda: True, metrics=page)
    await answering.start()
    head, _, body = (await asked(answering, b"GET /metrics?x=1 HTTP/1.1\r\n\r\n")).partition(b"\r\n\r\n")
    other = await asked(answering, b"GET / HTTP/1.1\r\n\r\n")
    answering.close()
    assert head.splitlines()[0] == b"HTTP/1.1 200 OK"
    assert b"Content-Type: text/plain; version=0.0.4; charset=utf-8" in head
    assert b"Content-Length: %d" % len(body) in head
    assert body.decode().endswith('fennelq_build_info{version="é"} 1\n')
    assert other.endswith(b"ask for /live, /ready or /metrics\n")


async def test_a_page_that_takes_too_long_closes_its_connection_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "PATIENCE", 0.05)

    async def page() -> Page:
        await asyncio.Event().wait()
        raise AssertionError

    answering = Health("127.0.0.1:0", live=lambda: True, ready=lambda: True, metrics=page)
    await answering.start()
    assert await asked(answering, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
    assert (await asked(answering, LIVE)).endswith(b"yes\n")
    answering.close()


async def test_a_probe_may_send_its_request_in_pieces(answering: Health) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", answering.port)
    for byte in LIVE:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert (await reader.read()).endswith(b"yes\n")
    writer.close()


async def test_held_connections_are_few_and_keep_no_probe_from_its_answer(
    answering: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PATIENCE", 600.0)  # none is closed for its age
    held = [await connected(answering) for _ in range(100)]
    closed: set[socket.socket] = set()

    def are_closed() -> int:
        for connection in held:
            try:
                if connection.recv(1) == b"":
                    closed.add(connection)
            except BlockingIOError:
                continue
            except ConnectionError:
                closed.add(connection)
        return len(closed)

    await aeventually(lambda: are_closed() == 100 - health.MOST_PROBES)
    assert closed == set(held[: len(closed)])
    assert (await asked(answering, LIVE)).endswith(b"yes\n")
    for connection in held:
        connection.close()


async def test_a_connection_that_asks_nothing_is_closed(
    answering: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PATIENCE", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", answering.port)
    assert await reader.read() == b""
    writer.close()


async def test_a_request_without_an_end_is_not_kept(answering: Health) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", answering.port)
    writer.write(b"x" * health.LONGEST_REQUEST)
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize(("pause", "attempts"), [(600.0, 1), (0.0, 3)])
async def test_without_file_descriptors_it_waits_before_it_accepts_again(
    monkeypatch: pytest.MonkeyPatch, logged: list[EventDict], pause: float, attempts: int
) -> None:
    loop, refused = asyncio.get_running_loop(), 0
    accept = loop.sock_accept

    async def refuse(listening: socket.socket) -> tuple[socket.socket, object]:
        nonlocal refused
        if refused == 3:
            return await accept(listening)
        refused += 1
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(health, "PAUSE_AFTER_ERROR", pause)
    monkeypatch.setattr(loop, "sock_accept", refuse)
    answering = Health("127.0.0.1:0", live=lambda: True, ready=lambda: False)
    await answering.start()
    for _ in range(50):
        await asyncio.sleep(0)
    assert refused == attempts
    assert [line["event"] for line in logged] == ["probe_not_accepted"] * attempts
    if attempts == 3:
        assert (await asked(answering, LIVE)).endswith(b"yes\n")
    answering.close()


async def test_a_port_that_is_taken_is_a_mistake_of_the_configuration(answering: Health) -> None:
    second = Health(f"127.0.0.1:{answering.port}", live=lambda: True, ready=lambda: True)
    with pytest.raises(ConfigurationError, match=f"--health-port {answering.port} cannot be opened"):
        await second.start()


@pytest.mark.parametrize("where", ["x", "127.0.0.1:", "70000", "1:2:"])
def test_a_port_that_cannot_be_read_is_a_mistake_of_the_configuration(where: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Health(where, live=lambda: True, ready=lambda: True)
