"""What every test may ask for: an empty server of our own, a proxy before it, child processes, a ledger."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.audit import audit
from tests.kit.clock import ServerClock
from tests.kit.clock import use as use_clock
from tests.kit.ledger import Ledger
from tests.kit.postgres import Postgres
from tests.kit.postgres import why_not as why_not_postgres
from tests.kit.proxy import Proxy
from tests.kit.server import Kind, Server, Servers, available
from tests.kit.spawn import Spawner

TESTS = Path(__file__).parent
SLOW = ("broker/test_walk", "chaos/", "cli/", "docs/", "integrations/", "typing/", "web/test_browser")
"""Files that take many seconds, by the beginning of their paths."""

# How long an example takes depends on the machine only.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_servers: run on Valkey and, where one is installed, on Redis")
    config.addinivalue_line(
        "markers", "audit(unfinished, lost, leavings_fail, skip): what a test may leave behind in Redis"
    )
    forget_settings_of_the_developer()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test marked `both_servers` runs once per kind of server that is here."""
    if "server_kind" in metafunc.fixturenames and metafunc.definition.get_closest_marker("both_servers"):
        metafunc.parametrize("server_kind", available(), indirect=True)


def forget_settings_of_the_developer() -> None:
    """FENNELQ_* of the shell must not reach the tests, nor the children they spawn."""
    for name in [name for name in os.environ if name.startswith("FENNELQ_")]:
        del os.environ[name]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, and keep it away from what was collected.

    The tests and their modules stay until the end, and every full garbage collection would look at all of them again:
    this took half of the CPU time of collecting, and a third of a second of each test that collects garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the slow files over the first part of a run, each with two quick ones after it.

    A process of xdist takes one file after the other, in this order. A slow one that comes last ends the run alone, and
    several at once take the processor from each other.
    """
    turns = {"slow": count(0, 3), "quick": filter(lambda turn: turn % 3, count())}
    turn_of: dict[Path, int] = {}
    for item in items:
        if item.path not in turn_of:
            is_slow = item.path.relative_to(TESTS).as_posix().startswith(SLOW)
            turn_of[item.path] = next(turns["slow" if is_slow else "quick"])
    items.sort(key=lambda item: turn_of[item.path])


def audit_hook(server: Server, test: pytest.Item) -> None:
    """Called with the server after each test that used it, when everything else the test had is closed.

    Fails the test when the keys it left are not as they must be. A test that has failed is not asked, nor is
    a server that was left dead. `@pytest.mark.audit(unfinished=True)` and other arguments of `audit()` describe
    what a test leaves behind on purpose; `skip="why"` that its keys are not checked.
    """
    arguments: dict[str, Any] = {}
    for mark in reversed([*test.iter_markers("audit")]):
        arguments |= mark.kwargs
    if "skip" not in arguments and not test.stash.get(FAILED, False):
        audit(server, **arguments)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    return report


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


@pytest.fixture(autouse=True)
def used_servers(request: pytest.FixtureRequest) -> Iterator[list[Server]]:
    """The servers of this test. `autouse` is torn down last, when no process of the test writes any more."""
    used: list[Server] = []
    yield used
    for server in used:
        if server.running:
            server.resume()
            audit_hook(server, request.node)


@pytest.fixture
def server(servers: Servers, server_kind: Kind, used_servers: list[Server]) -> Server:
    """A running server with an empty database. A test may kill or pause it: the next one gets it whole."""
    server = servers.clean(server_kind)
    used_servers.append(server)
    return server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """This process's PostgreSQL server. Tests that need it are skipped, with the reason, where none can be started."""
    if why := why_not_postgres():
        pytest.skip(why)
    with Postgres() as server:
        yield server


@pytest.fixture
def redis_url(server: Server) -> str:
    """The URL of `server`."""
    return server.url


@pytest.fixture
def server_clock(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerClock]:
    """The clock of `server`, to be moved or stopped: see `tests.kit.clock`."""
    use_clock(monkeypatch)
    with server.client() as client:
        yield ServerClock(client)


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
