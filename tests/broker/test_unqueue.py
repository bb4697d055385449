"""unqueue: starts the next of the runs that queue behind an unfinished one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fennelq.broker.verbs.schedules import Seen
from tests.broker.timetable import MINUTE, NEXT, V1, V2, Timetable, a_schedule
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers


def waiting(timetable: Timetable) -> Seen:
    """A schedule with one run that has started and two that wait."""
    timetable.declare(V1, a_schedule(overlap="queue"))
    timetable.clock.stop_at(NEXT)
    timetable.tick(timetable.seen(), runs=[NEXT], queued=[NEXT + 1, NEXT + 2])
    timetable.hand_over()
    return timetable.look().waiting[0]


def test_the_first_of_the_runs_that_wait_is_started(timetable: Timetable) -> None:
    assert timetable.unqueue(waiting(timetable))
    assert [*timetable.out()] == [f"mail:cron.report.{NEXT + 1}"]
    assert timetable.queued() == [NEXT + 2]
    state = timetable.state()
    assert (state["last_job"], state["last_run"]) == (f"mail:cron.report.{NEXT + 1}", str(NEXT + 1))
    assert state["runs"] == "2"


def test_when_the_last_has_started_nothing_queues(timetable: Timetable) -> None:
    timetable.unqueue(waiting(timetable))
    timetable.clock.pass_by(1000)
    assert timetable.unqueue(timetable.look().waiting[0])
    assert timetable.queued() is None
    assert timetable.look().queued == 0


def test_runs_that_wait_for_nothing_that_is_known_start(timetable: Timetable) -> None:
    waiting(timetable)
    timetable.redis.hdel(timetable.keys.schedule("report"), "last_job")
    timetable.clock.pass_by(1000)
    (seen,) = timetable.look().waiting
    assert seen.last_job == ""
    assert timetable.unqueue(seen)


def test_of_many_one_starts_it(timetable: Timetable) -> None:
    seen = waiting(timetable)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(timetable.unqueue, seen) for _ in range(40)]
        started = [claim.result() for claim in asked]
    assert started.count(True) == 1
    assert timetable.queued() == [NEXT + 2]


@pytest.mark.parametrize("change", ["paused", "changed", "vanished", "run by hand", "queued"])
def test_what_has_changed_since_it_was_seen_is_not_started(timetable: Timetable, change: str) -> None:
    seen = waiting(timetable)
    match change:
        case "paused":
            timetable.schedule("pause")
        case "changed":
            timetable.declare(V2, a_schedule(overlap="queue", args=b"[[7],{}]"))
        case "vanished":
            timetable.declare(V2)
        case "run by hand":
            timetable.schedule("run", value="mail:by-hand")
        case _:
            timetable.clock.pass_by(MINUTE)
            timetable.tick(timetable.seen(), queued=[NEXT + 1, NEXT + 2, NEXT + MINUTE])
    before = timetable.everything()
    assert not timetable.unqueue(seen)
    assert timetable.everything() == before


def test_over_maxmemory_it_is_started(timetable: Timetable, server: Server) -> None:
    seen = waiting(timetable)
    with server.configured(maxmemory="1"):
        assert timetable.unqueue(seen)


def test_the_error_of_the_run_before_is_kept_and_counted(timetable: Timetable) -> None:
    seen = waiting(timetable)
    assert timetable.unqueue(seen, "ValueError: no", 7)
    state = timetable.state()
    assert (state["last_error"], state["last_error_at"], state["errors"]) == ("ValueError: no", "7", "1")
