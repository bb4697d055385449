"""declare: makes the schedules in Redis those that the code declares."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.broker.timetable import MINUTE, NEXT, NOW, PATIENCE, V1, V2, Timetable, a_schedule
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers


def test_what_the_code_declares_is_made_known_and_due(timetable: Timetable) -> None:
    assert timetable.declare(V1, a_schedule("a"), a_schedule("b", every_ms=1000)) == 1
    assert timetable.names() == {"a", "b"}
    assert timetable.due() == {"a": NEXT, "b": NOW + 1000}
    assert timetable.state("a") == {"source": "code", "next": str(NEXT)}
    assert timetable.definition("a") == a_schedule("a")


def test_declared_again_it_stays_as_it_is(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.clock.pass_by(2 * MINUTE)
    before = timetable.due()
    assert timetable.declare(V1, a_schedule()) == 1
    assert timetable.due() == before


def test_a_new_version_adds_what_is_new_and_removes_what_has_vanished(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule("old"), a_schedule("kept"))
    timetable.clock.pass_by(1)
    assert timetable.declare(V2, a_schedule("kept"), a_schedule("new")) == 1
    assert timetable.names() == set(timetable.due()) == {"kept", "new"}
    assert timetable.state("old") == {}


def test_runs_that_queue_go_with_the_schedule_that_has_vanished(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule(overlap="queue"))
    timetable.clock.pass_by(MINUTE)
    timetable.tick(timetable.seen(), queued=[NEXT])
    timetable.declare(V2)
    assert timetable.queued() is None


def test_a_schedule_with_other_times_is_due_by_them(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.clock.pass_by(2 * MINUTE)
    timetable.declare(V2, a_schedule(every_ms=1000))
    assert timetable.due() == {"report": NOW + 2 * MINUTE + 1000}
    assert timetable.definition() == a_schedule(every_ms=1000)


@pytest.mark.parametrize(
    "other",
    [{"tz": "Europe/Paris"}, {"start_ms": NOW}, {"end_ms": NOW + 9 * MINUTE}, {"cron": "* * * * *", "every_ms": None}],
)  # fmt: skip
def test_its_times_are_all_that_says_when_it_runs(timetable: Timetable, other: dict[str, Any]) -> None:
    timetable.declare(V1, a_schedule())
    timetable.clock.pass_by(2 * MINUTE)
    timetable.declare(V2, a_schedule(**other))
    assert timetable.due()["report"] > NOW + 2 * MINUTE


def test_a_tick_that_is_due_is_not_lost_when_something_else_changes(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.clock.pass_by(2 * MINUTE)
    timetable.declare(V2, a_schedule(args=b"[[7],{}]", overlap="skip", queue="other"))
    assert timetable.due() == {"report": NEXT}
    assert timetable.definition().queue == "other"


def test_what_is_known_of_a_schedule_survives_its_change(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.clock.pass_by(MINUTE)
    timetable.tick(timetable.seen(), runs=[NEXT], error="ValueError: no", error_ms=NOW)
    before = timetable.state()
    timetable.declare(V2, a_schedule(every_ms=1000))
    after = timetable.state()
    assert after.pop("next") != before.pop("next")
    assert after == before


def test_a_paused_schedule_stays_paused(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.schedule("pause")
    timetable.declare(V2, a_schedule(every_ms=1000))
    assert timetable.due() == {}
    assert timetable.state()["paused"] == "1"
    timetable.schedule("resume", next_ms=NOW + 1000)
    assert timetable.due() == {"report": NOW + 1000}


def test_schedules_made_at_run_time_are_left_alone(timetable: Timetable) -> None:
    timetable.put(a_schedule("theirs"))
    timetable.declare(V1, a_schedule())
    timetable.declare(V2)
    assert timetable.names() == {"theirs"}
    assert timetable.state("theirs")["source"] == "runtime"


def test_the_code_may_take_the_name_of_one_made_at_run_time(timetable: Timetable) -> None:
    timetable.put(a_schedule(args=b"[[1],{}]"))
    timetable.declare(V1, a_schedule(args=b"[[2],{}]"))
    assert timetable.definition().args == b"[[2],{}]"
    assert timetable.state()["source"] == "code"
    timetable.declare(V2)
    assert timetable.names() == set()


# Two versions at once


def test_an_older_version_changes_nothing_while_a_later_one_holds(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.declare(V2, a_schedule(every_ms=1000))
    timetable.clock.pass_by(PATIENCE - 1)
    before = timetable.everything()
    assert timetable.declare(V1, a_schedule()) == 0
    assert timetable.everything() == before


def test_after_a_rollback_the_older_one_takes_over_again(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.declare(V2, a_schedule(every_ms=1000))
    timetable.clock.pass_by(PATIENCE)
    assert timetable.declare(V1, a_schedule()) == 1
    assert timetable.definition() == a_schedule()
    assert timetable.declare(V2, a_schedule(every_ms=1000)) == 0


def test_a_version_that_looks_is_not_gone(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.declare(V2, a_schedule(every_ms=1000))
    for _ in range(4):
        timetable.clock.pass_by(PATIENCE // 2)
        timetable.look(V2)
        assert timetable.declare(V1, a_schedule()) == 0


def test_an_older_version_that_looks_does_not_hold_for_the_later_one(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.declare(V2, a_schedule(every_ms=1000))
    timetable.clock.pass_by(PATIENCE)
    timetable.look(V1)
    assert timetable.declare(V1, a_schedule()) == 1


def test_two_versions_that_keep_declaring_do_not_fight(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    answers = [
        timetable.declare(version, a_schedule(every_ms=interval))
        for _ in range(5)
        for version, interval in ((V2, 1000), (V1, MINUTE))
    ]
    assert answers == [1, 0] * 5
    assert timetable.definition().every_ms == 1000


def test_when_the_servers_clock_jumps_back_a_rollback_does_not_wait_for_it(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.declare(V2, a_schedule(every_ms=1000))
    timetable.clock.pass_by(-60 * MINUTE)
    assert timetable.declare(V1, a_schedule()) == 1


def test_many_that_declare_at_once_come_to_one_declaration(timetable: Timetable) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(timetable.declare, V1, a_schedule("a"), a_schedule("b")) for _ in range(40)]
        assert {declared.result() for declared in asked} == {1}
    assert timetable.due() == {"a": NEXT, "b": NEXT}


def test_the_versions_that_are_remembered_are_bounded(timetable: Timetable) -> None:
    for number in range(60):
        timetable.clock.pass_by(1)
        timetable.declare(f"v{number}", a_schedule())
    assert timetable.redis.zcard(timetable.keys["cron:versions"]) == 50


# The rest


def test_what_was_deleted_from_the_due_ones_is_put_back_by_the_next_version(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.redis.delete(timetable.keys["cron:due"])
    timetable.declare(V2, a_schedule())
    assert timetable.due() == {"report": NEXT}


@pytest.mark.parametrize("strange", ["what?", "7", "null", "[]", ""])
def test_a_definition_that_nobody_can_read_is_replaced(timetable: Timetable, strange: str) -> None:
    timetable.declare(V1, a_schedule())
    timetable.redis.hset(timetable.keys.schedule("report"), "definition", strange)
    timetable.declare(V2, a_schedule(every_ms=1000))
    assert timetable.due() == {"report": NOW + 1000}


def test_one_that_is_over_is_known_and_never_due(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule(end_ms=NOW - 1))
    assert (timetable.names(), timetable.due()) == ({"report"}, {})


def test_executors_are_told_of_a_change_and_not_of_what_they_know(timetable: Timetable) -> None:
    with timetable.heard() as messages:
        timetable.declare(V1, a_schedule())
        timetable.declare(V1, a_schedule())
    assert messages == ["cron"]


def test_over_maxmemory_schedules_are_declared(timetable: Timetable, server: Server) -> None:
    with server.configured(maxmemory="1"):
        assert timetable.declare(V1, a_schedule()) == 1
    assert timetable.names() == {"report"}
