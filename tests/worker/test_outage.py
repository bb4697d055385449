"""The warnings of a worker: what it logs of trouble, and how often."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from datetime import datetime
from weakref import WeakSet

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from fennelq.broker.connection import address_of
from fennelq.broker.trouble import LinkDown, NoReply, ReplyError, WrongServer
from fennelq.worker.duties.service import Service, tend
from fennelq.worker.outage import LogThrottle, Outage

REFUSED = ConnectionRefusedError(111, "Connection refused")
SENTENCE = (
    "Redis at redis://:***@127.0.0.1:6379/0 cannot be reached: connection refused. "
    "Is it running? Start it, or correct redis_url (FENNELQ_REDIS_URL)."
)


class Clock:
    """The clocks of this process, moved by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return round(self.now * 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("fennelq.clock.monotonic", clock.monotonic)
    monkeypatch.setattr("fennelq.clock.wall_ms", clock.wall_ms)
    return clock


@pytest.fixture
def outage(clock: Clock) -> Outage:
    return Outage(address_of("redis://:s3cret@127.0.0.1:6379/0"))


@pytest.fixture
def logged() -> Iterator[list[EventDict]]:
    with capture_logs() as lines:
        yield lines


def events(logged: list[EventDict]) -> list[str]:
    return [line["event"] for line in logged]


def test_all_parts_together_log_once_that_redis_is_away_and_once_that_it_is_back(
    outage: Outage, clock: Clock, logged: list[EventDict]
) -> None:
    parts = [LogThrottle(name, outage) for name in ("reading", "settling", "renewing leases")]
    for _ in range(3):
        for part in parts:
            part.warn(REFUSED)
        clock.now += 1
    assert len(logged) == 1
    since = logged[0].pop("since")
    assert logged == [{"event": "redis_trouble", "log_level": "warning", "problem": SENTENCE}]
    assert datetime.fromisoformat(since).timestamp() == 1000
    parts[0].over()
    parts[1].over()
    assert len(logged) == 1
    parts[2].over()
    assert logged[1:] == [
        {
            "event": "redis_is_back",
            "log_level": "warning",
            "redis": "redis://:***@127.0.0.1:6379/0",
            "seconds": 3.0,
        }
    ]
    parts[2].over()
    assert len(logged) == 2


def test_while_redis_is_away_it_is_logged_once_a_minute(
    outage: Outage, clock: Clock, logged: list[EventDict]
) -> None:
    part, other = LogThrottle("reading", outage), LogThrottle("settling", outage)
    for _ in range(181):
        part.warn(REFUSED)
        other.warn(REFUSED)
        clock.now += 1
    assert events(logged) == ["redis_trouble"] * 4
    assert len({line["since"] for line in logged}) == 1


def test_a_connection_that_is_made_anew_at_once_is_not_worth_a_line(
    outage: Outage, clock: Clock, logged: list[EventDict]
) -> None:
    part = LogThrottle("reading", outage)
    part.warn(LinkDown("the server closed the connection"))
    clock.now += 0.3
    part.over()
    assert logged == []
    part.warn(ConnectionResetError())
    clock.now += 1.1
    part.warn(ConnectionResetError())
    assert events(logged) == ["redis_trouble"]


def test_the_first_line_names_what_is_wrong_and_not_only_that_the_connection_was_closed(
    outage: Outage, clock: Clock, logged: list[EventDict]
) -> None:
    LogThrottle("reading", outage).warn(LinkDown("the server closed the connection"))
    LogThrottle("listener", outage).warn(NoReply("the server closed the connection"))
    LogThrottle("settling", outage).warn(REFUSED)
    assert [line["problem"] for line in logged] == [SENTENCE]


def test_one_slow_part_fills_no_log_with_outages(
    outage: Outage, clock: Clock, logged: list[EventDict]
) -> None:
    """It fails and works again every few seconds: one line a minute, as for an outage that lasts."""
    part = LogThrottle("reading", outage)
    for _ in range(12):
        part.warn(REFUSED)
        clock.now += 0.6
        part.over()
        clock.now += 5
    assert events(logged) == ["redis_trouble", "redis_is_back"] * 2


def test_a_call_that_fails_late_is_not_logged_as_a_second_outage_but_a_second_outage_is(
    outage: Outage, clock: Clock, logged: list[EventDict]
) -> None:
    part = LogThrottle("reading", outage)
    part.warn(REFUSED)
    clock.now += 11
    part.over()
    for pause in (8, 12):
        assert events(logged) == ["redis_trouble", "redis_is_back"]
        clock.now += pause
        part.warn(REFUSED)
        part.over()
    assert events(logged) == ["redis_trouble", "redis_is_back"] * 2


def test_a_part_that_gave_up_does_not_keep_redis_away(
    outage: Outage, clock: Clock, logged: list[EventDict]
) -> None:
    LogThrottle("leaving", outage).warn(REFUSED)
    beats = LogThrottle("renewing leases", outage)
    beats.over()
    assert events(logged) == ["redis_trouble"]
    clock.now += 15
    beats.over()
    assert events(logged) == ["redis_trouble", "redis_is_back"]


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        WrongServer(b"HTTP/1.1"),
        ReplyError("OOM command not allowed"),
        ReplyError("WRONGPASS invalid"),
        ReplyError("LOADING Redis"),
        ReplyError("READONLY You can't write"),
    ],
    ids=str,
)
def test_trouble_with_redis_as_a_whole_is_logged_together(
    outage: Outage, logged: list[EventDict], error: Exception
) -> None:
    for name in ("reading", "settling"):
        LogThrottle(name, outage).warn(error, queue="mail")
    assert events(logged) == ["redis_trouble"]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("what"),
        ReplyError("WRONGTYPE Operation against a key"),
        ReplyError("NOPERM No permissions to access a key"),
    ],
    ids=str,
)
def test_other_trouble_is_logged_by_the_part_that_has_it(
    outage: Outage, logged: list[EventDict], error: Exception
) -> None:
    for name in ("reading", "settling"):
        LogThrottle(name, outage).warn(error, queue="mail")
    assert [(line["event"], line["what"], line["queue"]) for line in logged] == [
        ("trouble", "reading", "mail"),
        ("trouble", "settling", "mail"),
    ]


def test_what_is_remembered_about_queues_is_bounded(clock: Clock, logged: list[EventDict]) -> None:
    part = LogThrottle("reading")
    kept = WeakSet[Name]()

    def warn(name: Name) -> None:
        kept.add(name)
        part.warn(ValueError(), queue=name)

    for number in range(2500):
        warn(Name(f"q{number}"))
    assert len(logged) == 2500
    logged.clear()
    gc.collect()
    assert len(kept) <= 1000


class Name(str):
    """A text to which weak references are possible."""


async def test_a_service_that_works_again_logs_it(outage: Outage, logged: list[EventDict]) -> None:
    class Flaky(Service):
        name = "flaky"
        ticks = 0

        def __init__(self) -> None:
            self.woken = asyncio.Event()

        async def tick(self) -> float:
            self.ticks += 1
            if self.ticks == 1:
                raise REFUSED
            if self.ticks == 3:
                raise KeyboardInterrupt
            return 0.0

    with pytest.raises(KeyboardInterrupt):
        await tend(Flaky(), retry_after=0.0, outage=outage)
    assert events(logged) == ["redis_trouble", "redis_is_back"]
