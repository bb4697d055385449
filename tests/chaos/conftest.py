"""What the tests of the promise may ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from fennelq.worker.running import consumer
from tests.chaos.crew import Crew
from tests.chaos.fleet import Fleet
from tests.kit.ledger import Ledger
from tests.kit.server import Server
from tests.kit.spawn import Spawner

NEVER = 1e6
Figure = Callable[[str, object], None]


@pytest.fixture
def fleet(spawn: Spawner, server: Server, ledger: Ledger) -> Fleet:
    """Workers on `server`, none of them started yet."""
    return Fleet(spawn, server, ledger)


@pytest.fixture
def crew(spawn: Spawner, server: Server, ledger: Ledger) -> Iterator[Crew]:
    """Executors without a supervisor, on `server`, none of them started yet."""
    crew = Crew(spawn, server, ledger)
    yield crew
    crew.close()


@pytest.fixture
def quiet() -> Iterator[None]:
    """For executors that run in this process: their log is shown only when a test fails."""
    with capture_logs() as lines:
        yield
    for line in lines[-50:]:
        print(line)


@pytest.fixture
def without_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors of this process ask a queue only when they begin, have connected, or are woken: so a job whose message
    gets lost never starts."""
    monkeypatch.setattr(consumer, "ROUND", NEVER)
    monkeypatch.setattr(consumer, "UNHEARD_ROUND", NEVER)


@pytest.fixture
def a_server(used_servers: list[Server]) -> Iterator[Callable[..., Server]]:
    """`a_server(aof=True)`: one of the test's own, running.

    What it has acknowledged is on disk, unless a test asks for less: with `everysec` Redis answers before it has
    written while the disk is slow, and a kill at that moment loses what no worker can bring back.
    """
    made: list[Server] = []

    def make(**options: Any) -> Server:
        options["config"] = {"appendfsync": "always", **options.get("config", {})}
        made.append(Server(**options).start())
        used_servers.append(made[-1])
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """`figure("F1", "…")`: what was measured for a row of the fault matrix. `make chaos` lists them at the end."""

    def note(row: str, what: object) -> None:
        print(f"{row}: {what}")
        record_property(row, str(what))

    return note
