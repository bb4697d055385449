"""The pytest plugin of fennelq. It is beside the package and not in it, and imports fennelq in its fixtures only: a
project that does not use these fixtures pays nothing for them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fennelq import App
    from fennelq.testing import SessionServer, Testing

MARKER = (
    "fennelq(redis_url=, schedules=, leave_jobs=): the arguments of testing(app) for the fixture fennelq_test"
)

_FAILED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a test has failed: then the jobs that it leaves are no news."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture(scope="session")
def fennelq_server() -> Iterator[SessionServer]:
    """An embedded server for the tests of this process. With xdist, each of its workers has its own."""
    from fennelq.testing import session_server
    from fennelq.testing.server import close_session_server

    yield session_server()
    close_session_server()


@pytest.fixture
def fennelq_app(pytestconfig: pytest.Config) -> App:
    """The app for `fennelq_test`: the one that `fennelq worker` finds. Override this fixture to name another one."""
    from fennelq.worker.processes.discovery import find_app

    return find_app(folder=pytestconfig.rootpath).app


@pytest.fixture
def fennelq_test(request: pytest.FixtureRequest, fennelq_app: App) -> Iterator[Testing]:
    """The app under test: `testing(fennelq_app)` for the length of a test."""
    from fennelq.testing import testing

    arguments: dict[str, Any] = {}
    for mark in reversed([*request.node.iter_markers("fennelq")]):
        arguments |= mark.kwargs
    if "redis_url" not in arguments:
        arguments["redis_url"] = request.getfixturevalue("fennelq_server").url
    block = testing(fennelq_app, **arguments)
    yield block.open()
    block.close(failed=request.node.stash.get(_FAILED, False))
