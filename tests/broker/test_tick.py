"""tick: claims the due ticks of a schedule, and writes their jobs down to be handed over."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.broker.timetable import MINUTE, NEXT, SHOP, V1, V2, Timetable, a_schedule
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers

JOB = f"mail:cron.report.{NEXT}"


@pytest.fixture
def due(timetable: Timetable) -> Timetable:
    """A schedule that is due."""
    timetable.declare(V1, a_schedule())
    timetable.clock.stop_at(NEXT)
    return timetable


def test_a_claim_moves_the_schedule_on_and_makes_its_job(due: Timetable) -> None:
    assert due.tick(due.seen(), runs=[NEXT])
    assert due.due() == {"report": NEXT + MINUTE}
    assert due.out() == {
        JOB: {
            "queue": "mail",
            "key": f"cron.report.{NEXT}",
            "task": "app:report",
            "args": "[[],{}]",
            "keep_ms": 86_400_000,
        }
    }
    assert due.state() == {
        "source": f"code:{SHOP}",
        "next": str(NEXT + MINUTE),
        "last_job": JOB,
        "last_run": str(NEXT),
        "runs": "1",
    }


def test_of_many_claimers_one_gets_the_tick(due: Timetable) -> None:
    seen = due.seen()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(due.tick, seen, runs=[NEXT]) for _ in range(40)]
        claims = [claim.result() for claim in asked]
    assert claims.count(True) == 1
    assert due.state()["runs"] == "1"


def test_a_tick_cannot_be_claimed_again_after_its_job_has_come_and_gone(due: Timetable) -> None:
    seen = due.seen()
    due.tick(seen, runs=[NEXT])
    due.hand_over()
    assert not due.tick(seen, runs=[NEXT])
    assert due.out() == {}


def test_ticks_that_make_no_job_are_claimed_once_too(due: Timetable) -> None:
    seen = due.seen()
    assert due.tick(seen, skipped=1)
    assert not due.tick(seen, skipped=1)
    assert due.state()["skipped"] == "1"


def test_several_ticks_are_claimed_at_once(due: Timetable) -> None:
    runs = [NEXT, NEXT + MINUTE, NEXT + 2 * MINUTE]
    assert due.tick(due.seen(), runs=runs, next_ms=NEXT + 3 * MINUTE, skipped=4)
    assert set(due.out()) == {f"mail:cron.report.{run}" for run in runs}
    state = due.state()
    assert (state["runs"], state["last_run"], state["skipped"]) == ("3", str(runs[-1]), "4")
    assert state["last_job"].endswith(str(runs[-1]))


def test_a_claim_without_a_run_leaves_the_last_one_as_it_was(due: Timetable) -> None:
    due.tick(due.seen(), runs=[NEXT])
    due.clock.pass_by(MINUTE)
    assert due.tick(due.seen(), skipped=1)
    state = due.state()
    assert (state["runs"], state["last_run"], state["last_job"], state["skipped"]) == (
        "1",
        str(NEXT),
        JOB,
        "1",
    )


def test_figures_add_up(due: Timetable) -> None:
    for _ in range(3):
        seen = due.seen()
        due.tick(seen, runs=[seen.next_ms], skipped=2)
        due.clock.pass_by(MINUTE)
    assert (due.state()["runs"], due.state()["skipped"]) == ("3", "6")


def test_an_error_is_kept_until_the_next_one(due: Timetable) -> None:
    due.tick(due.seen(), runs=[NEXT], error="ValueError: no", error_ms=7)
    due.clock.pass_by(MINUTE)
    due.tick(due.seen(), runs=[NEXT + MINUTE])
    assert (due.state()["last_error"], due.state()["last_error_at"]) == ("ValueError: no", "7")
    due.clock.pass_by(MINUTE)
    due.tick(due.seen(), error="OSError: no", error_ms=8)
    assert (due.state()["last_error"], due.state()["last_error_at"]) == ("OSError: no", "8")


def test_each_run_that_failed_is_counted_once(due: Timetable) -> None:
    due.tick(due.seen(), runs=[NEXT])
    for _ in range(2):
        due.clock.pass_by(MINUTE)
        due.tick(
            due.seen(), error="ValueError: no", error_ms=7
        )  # the run before goes on, or this tick is left out
    assert due.state()["errors"] == "1"
    due.clock.pass_by(MINUTE)
    due.tick(due.seen(), runs=[NEXT + 3 * MINUTE], error="ValueError: no", error_ms=7)
    assert due.state()["errors"] == "1"
    due.clock.pass_by(MINUTE)
    due.tick(due.seen(), runs=[NEXT + 4 * MINUTE], error="ValueError: no", error_ms=9)
    assert due.state()["errors"] == "2"


def test_after_its_last_tick_a_schedule_is_due_no_more(due: Timetable) -> None:
    assert due.tick(due.seen(), runs=[NEXT], next_ms=0)
    assert (due.due(), due.state()["next"]) == ({}, "")


def test_runs_that_wait_are_written_down(due: Timetable) -> None:
    due.tick(due.seen(), runs=[NEXT], queued=[NEXT + 1, NEXT + 2])
    assert due.queued() == [NEXT + 1, NEXT + 2]
    due.clock.pass_by(MINUTE)
    due.tick(due.seen())
    assert due.queued() == [NEXT + 1, NEXT + 2]


# A claim is of what was seen


def refused(due: Timetable, change: str) -> bool:
    """Whether a claim changes nothing when this has happened since it was looked at."""
    seen = due.seen()
    match change:
        case "paused":
            due.schedule("pause")
        case "changed":
            due.declare(V2, a_schedule(args=b"[[7],{}]"))
        case "vanished":
            due.declare(V2)
        case "run by hand":
            due.schedule("run", value="mail:by-hand")
        case _:
            due.redis.hset(due.keys["cron:queued"], "report", "[1]")
    before = due.everything()
    return not due.tick(seen, runs=[NEXT]) and due.everything() == before


@pytest.mark.parametrize("change", ["paused", "changed", "vanished", "run by hand", "queued"])
def test_what_has_changed_since_it_was_seen_is_not_claimed(due: Timetable, change: str) -> None:
    assert refused(due, change)


def test_what_was_changed_is_still_due_and_claimed_as_it_is_now(due: Timetable) -> None:
    assert refused(due, "changed")
    assert due.tick(due.seen(), runs=[NEXT])
    assert due.out()[JOB]["args"] == "[[7],{}]"


def test_over_maxmemory_ticks_are_claimed(due: Timetable, server: Server) -> None:
    seen = due.seen()
    with server.configured(maxmemory="1"):
        assert due.tick(seen, runs=[NEXT])
    assert [*due.out()] == [JOB]
