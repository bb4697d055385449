"""Preflight: what is checked before a worker starts must not delay its start or its stop."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from fennelq.broker import verbs
from fennelq.worker.processes import preflight
from tests.kit.apps import LocalApp
from tests.kit.ports import HOST
from tests.kit.server import Server
from tests.kit.troubles import listening
from tests.kit.waiting import eventually


class Hanging:
    """A server that accepts connections and never replies."""

    def __init__(self) -> None:
        self.connected, self.released = threading.Event(), threading.Event()
        self.app = LocalApp("shop")

    def handle(self, sock: socket.socket) -> None:
        self.connected.set()
        self.released.wait()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    server = Hanging()
    with listening(server.handle) as port:
        server.app = LocalApp("shop", redis_url=f"redis://{HOST}:{port}/0")
        yield server
        server.released.set()
    eventually(lambda: not checking())


def checking() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == preflight.THREAD]


def test_while_redis_hangs_the_look_for_unknown_queues_delays_neither_the_start_nor_the_exit(
    hanging: Hanging,
) -> None:
    preflight.warn_of_unknown_queues(hanging.app, "mail")
    (thread,) = checking()
    assert thread.daemon
    assert hanging.connected.wait(5)
    assert not hanging.released.is_set()


@pytest.mark.parametrize(
    ("queues", "unknown"),
    [
        ("mail,default", []),
        ("mail.*,ma*", []),
        ("sales.*,mail.*", ["sales.*"]),
        ("maill,mail.a,sales.*:3,m*:1", ["maill, sales.*"]),
    ],
)
def test_names_and_patterns_that_fit_no_known_queue_are_reported(
    server: Server, queues: str, unknown: list[str]
) -> None:
    """Known are the queues of the tasks, the default queue, and those in Redis."""
    app = LocalApp("shop", redis_url=server.url)

    @app.task(name="shop:note", queue="mail")
    def note() -> None: ...

    app.blocking.ask(verbs.queues.note_queues("shop", ["mail.a", "mail.b"]))
    with capture_logs() as logged:
        preflight.warn_of_unknown_queues(app, queues)
        eventually(lambda: not checking())
    lines = [line for line in logged if line["event"] == "queues_unknown"]
    assert [line["unknown"] for line in lines] == unknown
    assert {line["known"] for line in lines} <= {"default, mail, mail.a, mail.b"}
    app.blocking.close()


@pytest.mark.parametrize("queues", [None, ""])
def test_a_worker_for_every_queue_does_not_look_for_unknown_ones(
    hanging: Hanging, queues: str | None
) -> None:
    preflight.warn_of_unknown_queues(hanging.app, queues)
    assert checking() == []
    assert not hanging.connected.is_set()
