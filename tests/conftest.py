"""What every test may ask for: an empty server of our own, a proxy before it, child processes, a ledger."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.ledger import Ledger
from tests.kit.proxy import Proxy
from tests.kit.server import Kind, Server, Servers, available
from tests.kit.spawn import Spawner


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_servers: run on Valkey and, where one is installed, on Redis")
    forget_settings_of_the_developer()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test marked `both_servers` runs once per kind of server that is here."""
    if "server_kind" in metafunc.fixturenames and metafunc.definition.get_closest_marker("both_servers"):
        metafunc.parametrize("server_kind", available(), indirect=True)


def forget_settings_of_the_developer() -> None:
    """FENNELQ_* of the shell must not reach the tests, nor the children they spawn."""
    for name in [name for name in os.environ if name.startswith("FENNELQ_")]:
        del os.environ[name]


def audit_hook(server: Server) -> None:
    """Called with the server after each test that used it, when everything else the test had is closed.

    This is the place for what must hold of the keys a test leaves behind.
    """


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """This process's servers: with xdist, each of its workers has its own."""
    shared = Servers()
    yield shared
    shared.close()


@pytest.fixture
def server_kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = getattr(request, "param", "valkey")
    return kind


@pytest.fixture
def server(servers: Servers, server_kind: Kind) -> Iterator[Server]:
    """A running server with an empty database. Tests may kill or pause it; the next one gets it whole again."""
    shared = servers.clean(server_kind)
    yield shared
    if shared.running:
        shared.resume()
        audit_hook(shared)


@pytest.fixture
def redis_url(server: Server) -> str:
    """The URL of `server`."""
    return server.url


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy in front of `server`, up."""
    with Proxy(server.url) as before:
        yield before


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger; hand `ledger.environment` to the processes that write to it."""
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawner]:
    """`spawn("fennelq", "worker", …, environment={…})`: a `Process.module` that ends with the test.

    What the processes printed is shown with the test's other output when it fails.
    """
    spawner = Spawner(tmp_path)
    yield spawner
    spawner.close()
    print(spawner.report())
