"""What the tests of the broker may ask for: a queue on the workbench."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.desk import Desk
from tests.broker.fleet import Fleet
from tests.broker.timetable import Timetable
from tests.kit.clock import ServerClock
from tests.kit.server import Server


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    """The queue `mail` of a server that has never seen it. Its lanes are made by their first jobs."""
    desk = Desk(server)
    yield desk
    desk.close()


@pytest.fixture
def timetable(server: Server, server_clock: ServerClock) -> Iterator[Timetable]:
    """The schedules of the app `shop`, on a server whose clock stands still."""
    timetable = Timetable(server, server_clock)
    yield timetable
    timetable.close()


@pytest.fixture
def fleet(server: Server, server_clock: ServerClock) -> Iterator[Fleet]:
    """The executors of the app `shop`, on a server whose clock stands still."""
    fleet = Fleet(server, server_clock)
    yield fleet
    fleet.close()
