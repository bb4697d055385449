"""Faults around lines: a server without memory, a long line that is cancelled and purged, executors of some lanes."""

from __future__ import annotations

from typing import Final

import pytest

from fennelq.broker import verbs
from fennelq.broker.dispatch import pages
from fennelq.broker.trouble import ReplyError
from tests.broker.desk import LIFETIMES, Desk, a_job
from tests.broker.limited import calls
from tests.kit.clock import ServerClock
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

ONE = "c1:account/17"
RATE = "r1000000/3:api"
"""One per second, and three at once after a pause."""
NOW = 1_795_000_000_000


@pytest.fixture
def clock(server_clock: ServerClock) -> ServerClock:
    """The clock of the server, which stands."""
    server_clock.stop_at(NOW)
    return server_clock


def taken(desk: Desk, consumer: str = "anna", lanes: tuple[str, ...] = ("s:high", "s", "s:low")) -> list[str]:
    return [one.key for one in desk.fetch(consumer, lanes=lanes).deliveries]


# Over maxmemory


@pytest.mark.audit(unfinished=True, lost=["mail:2"])
def test_over_maxmemory_every_script_that_gives_something_back_calls_the_next(
    desk: Desk, server: Server, clock: ServerClock
) -> None:
    """L6. finish, cancel, fetch, promote and mend do; the turn passes on with each start."""
    desk.enqueue(*(a_job(key, gates=f"{ONE} t1:tenant/1") for key in ("1", "2", "3", "4", "5")))
    desk.enqueue(a_job("later", gates=ONE, at_ms=1), *(a_job(f"r{n}", gates=RATE) for n in range(5)))
    (run, *_) = desk.take(free=1)
    with server.configured(maxmemory="1"):
        assert desk.finish([run]) == [1]
        assert taken(desk) == ["r0", "r1", "r2", "2"]
        assert desk.cancel("3") == [1]
        desk.redis.delete(desk.keys.record("2"))
        assert desk.do(verbs.queues.mend, 100).slots == 1
        assert taken(desk) == ["4"]
    clock.pass_by(1000)
    with server.configured(maxmemory="1"):
        assert desk.do(verbs.queues.promote, 100)[0] == 2
        assert (taken(desk), sorted(desk.in_lines())) == (["r3"], ["5", "later", "r4"])


@pytest.mark.parametrize("bounded", [False, True])
def test_over_maxmemory_no_job_is_created_and_no_line_begins(
    desk: Desk, server: Server, bounded: bool
) -> None:
    """L6. Neither by a caller nor in a queue with a bound."""
    desk.enqueue(a_job("1", gates=ONE))
    before = desk.everything()
    verb = (
        verbs.jobs.displace(desk.keys, [a_job("2", gates=ONE)], 1, LIFETIMES)
        if bounded
        else verbs.jobs.enqueue(desk.keys, [a_job("2", gates=ONE)])
    )
    with server.configured(maxmemory="1"), pytest.raises(ReplyError, match="OOM"):
        desk.broker.run(verb)
    assert desk.everything() == before


# A long line


MANY: Final = pytest.param(
    100_000, marks=[pytest.mark.slow, pytest.mark.audit(skip="it would read 100,000 cancelled records")]
)


@pytest.mark.parametrize("number", [400, MANY])
def test_each_job_of_a_long_line_moves_once_and_nothing_is_left_of_those_that_are_cancelled_or_purged(
    desk: Desk, number: int
) -> None:
    """L7. One entry per job that runs, whatever waits behind it."""
    keys = [f"{n:06}" for n in range(number)]
    for page in pages(keys, 1000):
        desk.enqueue(*(a_job(key, gates=ONE) for key in page))
    for page in pages(keys[1::2], 1000):
        assert desk.cancel(*page) == [1] * len(page)
    assert desk.in_lines() == keys[2::2]
    entered = calls(desk, "xadd")
    for key in keys[:100:2]:
        (run,) = desk.take()
        assert run.key == key
        desk.finish([run])
    assert calls(desk, "xadd") - entered == 50
    assert (desk.waiting(), desk.in_lines()) == ([keys[100]], keys[102::2])
    assert desk.stats()["parked"] == number // 2 - 51
    while desk.do(verbs.queues.purge, LIFETIMES, 100):
        pass
    assert (desk.keys_of_limits(), desk.everywhere(), "parked" in desk.stats()) == ([], [], False)
    assert desk.stats()["K"] == number - 50


# Executors that read only some lanes


def test_a_normal_job_wakes_the_executor_that_reads_its_lane(desk: Desk) -> None:
    """L16. Not one of those that sleep and read only the high lane."""
    for name in ("high-1", "high-2", "high-3"):
        desk.fetch(name, lanes=("s:high",), sleeps=True)
    desk.fetch("all", sleeps=True)
    with desk.subscribed("high-1", "high-2", "high-3", "all") as heard:
        desk.enqueue(a_job("1", gates=ONE), a_job("2", gates=ONE))
        assert heard() == [("all", "look s")]
        (run,) = desk.fetch("all", sleeps=True).deliveries
        desk.fetch("all", sleeps=True)
        desk.finish([run])
        assert heard() == [("all", "look s")]


def high_behind_low(desk: Desk, clock: ServerClock, *, ended: bool = False) -> None:
    """A low job is through the gate of its rate and has not started. A high one waits in its line, because others have
    used the rate up since; now it would be open, but its alarm has not been noticed."""
    desk.enqueue(a_job("low", gates=RATE, priority="low"))
    desk.enqueue(*(a_job(f"h{n}", gates=RATE, priority="high") for n in range(3)))
    runs = desk.fetch(lanes=("s:high",)).deliveries
    assert [run.key for run in runs] == ["h0", "h1", "h2"]
    if ended:
        desk.finish(runs)
    desk.enqueue(a_job("high", gates=RATE, priority="high"))
    assert desk.in_lines() == ["high"]
    clock.pass_by(60_000)


def test_a_low_job_whose_start_opens_a_rate_wakes_an_executor_for_the_high_job_that_it_lets_in(
    desk: Desk, clock: ServerClock
) -> None:
    """L16. The executor of the low lanes cannot take it."""
    high_behind_low(desk, clock)
    desk.fetch("high", lanes=("s:high",), sleeps=True)
    with desk.subscribed("high", "others") as heard:
        assert taken(desk, "others", ("s", "s:low")) == ["low"]
        assert heard() == [("high", "look s:high")]
        assert taken(desk, "high", ("s:high",)) == ["high"]


@pytest.mark.parametrize("ended", [False, True], ids=["others-run", "no-entry"])
def test_an_executor_of_all_lanes_takes_the_high_job_that_the_start_of_a_low_one_lets_in(
    desk: Desk, clock: ServerClock, ended: bool
) -> None:
    """L16. In the same step, although it has read the high lane before, or found that it has no entry."""
    high_behind_low(desk, clock, ended=ended)
    caught = desk.fetch("all", sleeps=True)
    assert ([one.key for one in caught.deliveries], caught.drained) == (["low", "high"], True)


def test_a_low_job_that_the_end_of_an_expired_one_lets_in_is_taken_although_its_lane_was_not_there(
    desk: Desk,
) -> None:
    """The fetch that finds a job expired gives its slot back. At its beginning the queue had only the normal lane."""
    desk.enqueue(a_job("expires", gates="c1:one"))
    desk.enqueue(a_job("low", gates="c1:one", priority="low"))
    assert desk.in_lines() == ["low"]
    desk.redis.hset(desk.keys.record("expires"), "E", "1")
    caught = desk.fetch("all", sleeps=True)
    assert ([one.key for one in caught.deliveries], caught.drained) == (["low"], True)
