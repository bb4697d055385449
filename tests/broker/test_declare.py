"""declare: makes the schedules in Redis those that the code declares."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fennelq.broker import verbs
from tests.broker.timetable import MINUTE, NEXT, NOW, OTHER, PATIENCE, SHOP, V1, V2, Timetable, a_schedule
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers


def test_what_the_code_declares_is_made_known_and_due(timetable: Timetable) -> None:
    assert timetable.declare(V1, a_schedule("a"), a_schedule("b", every_ms=1000)) == "done"
    assert timetable.names() == {"a", "b"}
    assert timetable.due() == {"a": NEXT, "b": NOW + 1000}
    assert timetable.state("a") == {"source": f"code:{SHOP}", "next": str(NEXT)}
    assert timetable.definition("a") == a_schedule("a")


def test_declared_again_it_stays_as_it_is(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.clock.pass_by(2 * MINUTE)
    before = timetable.due()
    assert timetable.declare(V1, a_schedule()) == "done"
    assert timetable.due() == before


def test_a_new_version_adds_what_is_new_and_removes_what_has_vanished(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule("old"), a_schedule("kept"))
    timetable.clock.pass_by(1)
    assert timetable.declare(V2, a_schedule("kept"), a_schedule("new")) == "done"
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
def test_only_its_times_decide_when_it_runs(timetable: Timetable, other: dict[str, Any]) -> None:
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
    assert timetable.state()["source"] == f"code:{SHOP}"
    timetable.declare(V2)
    assert timetable.names() == set()


# Two versions at once


def test_an_older_version_changes_nothing_while_a_later_one_holds(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.declare(V2, a_schedule(every_ms=1000))
    timetable.clock.pass_by(PATIENCE - 1)
    before = timetable.everything()
    assert timetable.declare(V1, a_schedule()) == "held"
    assert timetable.everything() == before


def test_after_a_rollback_the_older_one_takes_over_again(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.declare(V2, a_schedule(every_ms=1000))
    timetable.clock.pass_by(PATIENCE)
    assert timetable.declare(V1, a_schedule()) == "done"
    assert timetable.definition() == a_schedule()
    assert timetable.declare(V2, a_schedule(every_ms=1000)) == "held"


def test_a_version_that_looks_is_not_gone(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.declare(V2, a_schedule(every_ms=1000))
    for _ in range(4):
        timetable.clock.pass_by(PATIENCE // 2)
        timetable.look(V2)
        assert timetable.declare(V1, a_schedule()) == "held"


def test_an_older_version_that_looks_does_not_hold_for_the_later_one(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.declare(V2, a_schedule(every_ms=1000))
    timetable.clock.pass_by(PATIENCE)
    timetable.look(V1)
    assert timetable.declare(V1, a_schedule()) == "done"


def test_two_versions_that_keep_declaring_do_not_fight(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    answers = [
        timetable.declare(version, a_schedule(every_ms=interval))
        for _ in range(5)
        for version, interval in ((V2, 1000), (V1, MINUTE))
    ]
    assert answers == ["done", "held"] * 5
    assert timetable.definition().every_ms == 1000


def test_when_the_servers_clock_jumps_back_a_rollback_does_not_wait_for_it(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.declare(V2, a_schedule(every_ms=1000))
    timetable.clock.pass_by(-60 * MINUTE)
    assert timetable.declare(V1, a_schedule()) == "done"


def test_what_was_removed_is_declared_anew_at_once_although_the_servers_clock_jumps_back(
    timetable: Timetable,
) -> None:
    """The same version declares it: there is none for which it has to wait."""
    ours = a_schedule("a"), a_schedule("b")
    timetable.declare(V1, *ours)
    timetable.clock.pass_by(PATIENCE)
    assert timetable.schedule("remove", "a") == 1
    timetable.clock.stop_at(NOW)
    assert timetable.declare(V1, *ours) == "done"
    assert timetable.names() == {"a", "b"}


def test_many_that_declare_at_once_come_to_one_declaration(timetable: Timetable) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(timetable.declare, V1, a_schedule("a"), a_schedule("b")) for _ in range(40)]
        assert {declared.result() for declared in asked} == {"done"}
    assert timetable.due() == {"a": NEXT, "b": NEXT}


def test_the_versions_that_are_remembered_are_bounded(timetable: Timetable) -> None:
    for number in range(60):
        timetable.clock.pass_by(1)
        timetable.declare(f"v{number}", a_schedule())
    assert timetable.redis.zcard(timetable.keys["cron:known"]) == 60


# The rest


def test_what_was_deleted_from_the_due_ones_is_put_back_by_the_next_version(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.redis.delete(timetable.keys["cron:due"])
    timetable.declare(V2, a_schedule())
    assert timetable.due() == {"report": NEXT}


@pytest.mark.parametrize("strange", ["what?", "7", "null", "[]", ""])
def test_a_definition_that_cannot_be_read_is_replaced(timetable: Timetable, strange: str) -> None:
    timetable.declare(V1, a_schedule())
    timetable.redis.hset(timetable.keys.schedule("report"), "definition", strange)
    timetable.declare(V2, a_schedule(every_ms=1000))
    assert timetable.due() == {"report": NOW + 1000}


def test_one_that_is_over_is_known_and_never_due(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule(end_ms=NOW - 1))
    assert (timetable.names(), timetable.due()) == ({"report"}, {})


def test_executors_are_notified_of_a_change_and_not_of_what_they_know(timetable: Timetable) -> None:
    with timetable.heard() as messages:
        timetable.declare(V1, a_schedule())
        timetable.declare(V1, a_schedule())
    assert messages == ["cron"]


def test_over_maxmemory_schedules_are_declared(timetable: Timetable, server: Server) -> None:
    with server.configured(maxmemory="1"):
        assert timetable.declare(V1, a_schedule()) == "done"
    assert timetable.names() == {"report"}


# Services


def test_a_service_removes_nothing_of_another(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule("theirs"))
    timetable.declare(V1, a_schedule("old"), service=OTHER)
    timetable.declare(V2, a_schedule("new"), service=OTHER)
    assert timetable.removed == ["old"]
    assert timetable.names() == set(timetable.due()) == {"theirs", "new"}


def test_a_service_without_schedules_changes_none(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    before = timetable.schedules()
    assert timetable.declare("none", service=OTHER) == "done"
    assert (timetable.schedules(), timetable.removed) == (before, [])


def test_what_is_removed_is_named(timetable: Timetable) -> None:
    timetable.declare(V1, *(a_schedule(name) for name in ("a", "b", "c")))
    timetable.declare(V2, a_schedule("b"))
    assert sorted(timetable.removed) == ["a", "c"]


def test_each_service_has_versions_of_its_own(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule("a"))
    timetable.declare(V1, a_schedule("b"), service=OTHER)
    timetable.declare(V2, a_schedule("a", every_ms=1000))
    assert timetable.declare(V1, a_schedule("a")) == "held"
    assert timetable.declare(V2, a_schedule("b", every_ms=1000), service=OTHER) == "done"
    assert timetable.declare(V1, a_schedule("b"), service=OTHER) == "held"
    assert timetable.look(V2).version == timetable.look(V2, service=OTHER).version == V2
    assert timetable.look("v3", service="third:shop").version == ""


def test_the_versions_that_are_remembered_are_bounded_by_a_thousand(timetable: Timetable) -> None:
    known = timetable.keys["cron:known"]
    timetable.redis.zadd(known, {f"v{n} {OTHER}": NOW - 1001 + n for n in range(1000)})
    timetable.declare(V1, a_schedule())
    assert timetable.redis.zcard(known) == 1000
    assert timetable.redis.zscore(known, f"{V1} {SHOP}") == NOW
    assert timetable.redis.zscore(known, f"v0 {OTHER}") is None


def test_a_name_belongs_to_the_service_that_declared_it_first(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule(every_ms=1000), a_schedule("a"))
    before = timetable.state(), timetable.definition()
    assert timetable.declare(V1, a_schedule(every_ms=2000), a_schedule("b"), service=OTHER) == "done"
    assert (timetable.state(), timetable.definition()) == before
    assert timetable.do(verbs.schedules.denied, OTHER) == {"report": f"code:{SHOP}"}
    assert timetable.look(service=OTHER).denied == 1
    assert timetable.names() == {"report", "a", "b"}


def test_the_same_schedule_declared_by_two_is_nothing_to_complain_about(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.declare(V1, a_schedule(), service=OTHER)
    assert timetable.do(verbs.schedules.denied, OTHER) == {"report": ""}


def test_two_services_that_declare_the_same_name_do_not_fight(timetable: Timetable) -> None:
    ours, theirs = a_schedule(every_ms=1000), a_schedule(every_ms=2000)
    timetable.declare(V1, ours)
    for _ in range(10):
        timetable.clock.pass_by(PATIENCE // 4)
        timetable.look(V1)
        timetable.look(V1, service=OTHER)
        timetable.page(V1, [theirs], "again", service=OTHER)
        timetable.declare(V1, theirs, service=OTHER)
        timetable.declare(V1, ours)
        assert timetable.definition() == ours


def test_a_name_goes_over_when_its_service_declares_it_no_more(timetable: Timetable) -> None:
    ours, theirs = a_schedule(every_ms=1000), a_schedule(every_ms=2000)
    timetable.declare(V1, ours)
    timetable.declare(V1, theirs, service=OTHER)
    timetable.declare(V2)
    with timetable.heard() as messages:
        assert timetable.page(V1, [theirs], "again", service=OTHER).state == "done"
    assert messages == ["cron"]
    assert (timetable.definition(), timetable.state()["source"]) == (theirs, f"code:{OTHER}")
    assert timetable.do(verbs.schedules.denied, OTHER) == {}
    timetable.declare(V2, service=OTHER)
    assert timetable.names() == set()


def test_a_declaration_that_changes_nothing_notifies_no_executor(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule(every_ms=1000))
    timetable.declare(V1, a_schedule(every_ms=2000), service=OTHER)
    with timetable.heard() as messages:
        timetable.page(V1, [a_schedule(every_ms=2000)], "again", service=OTHER)
    assert messages == []


def test_a_name_goes_over_when_its_service_is_gone_as_after_a_renaming(timetable: Timetable) -> None:
    ours, theirs = a_schedule(every_ms=1000), a_schedule(every_ms=2000)
    timetable.declare(V1, ours)
    timetable.declare(V1, theirs, service=OTHER)
    timetable.clock.pass_by(PATIENCE - 1)
    timetable.page(V1, [theirs], "again", service=OTHER)
    assert timetable.definition() == ours
    timetable.clock.pass_by(1)
    timetable.page(V1, [theirs], "again", service=OTHER)
    assert timetable.definition() == theirs
    assert (timetable.owned(SHOP), timetable.owned(OTHER)) == ({}, {"report": 1})
    # The first service comes back, and learns that the name is no longer its own.
    assert timetable.look(V1).version == ""
    assert timetable.declare(V1, ours) == "done"
    assert timetable.do(verbs.schedules.denied, SHOP) == {"report": f"code:{OTHER}"}
    assert timetable.definition() == theirs
    timetable.declare(V2)
    assert timetable.names() == {"report"}


def test_a_service_is_there_while_any_version_of_it_looks(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule(every_ms=1000))
    timetable.declare(V2, a_schedule(every_ms=3000))
    for _ in range(4):
        timetable.clock.pass_by(PATIENCE // 2)
        timetable.look(V1)
        timetable.declare("x", a_schedule(every_ms=2000), service=OTHER)
    assert timetable.definition().every_ms == 3000


def test_what_is_denied_to_an_old_version_does_not_concern_the_next(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule(every_ms=1000))
    timetable.declare(V1, a_schedule(every_ms=2000), service=OTHER)
    timetable.declare(V2, a_schedule("b"), service=OTHER)
    assert timetable.do(verbs.schedules.denied, OTHER) == {}
    assert timetable.look(V2, service=OTHER).denied == 0


def test_one_that_was_made_into_a_schedule_of_the_run_time_is_left_alone(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.redis.hset(timetable.keys.schedule("report"), "source", "runtime")
    timetable.declare(V2)
    assert timetable.names() == {"report"}
    assert timetable.owned(SHOP) == {}


# A page at a time


MANY = [a_schedule(f"s{n:03}") for n in range(250)]
OTHERS = [a_schedule(f"s{n:03}", every_ms=1000) for n in range(50, 300)]


def test_a_declaration_comes_in_pages_and_holds_when_all_have_come(timetable: Timetable) -> None:
    assert timetable.page(V1, MANY) == ("open", 100, [])
    assert timetable.page(V1, MANY, 100) == ("open", 200, [])
    assert timetable.look(V1).version == ""
    assert timetable.look(V2).version == V1
    assert timetable.page(V1, MANY, 200) == ("done", 250, [])
    assert timetable.look(V1).version == V1
    assert timetable.names() == {schedule.name for schedule in MANY}


def test_a_page_that_comes_twice_or_out_of_order_writes_nothing(timetable: Timetable) -> None:
    timetable.page(V1, MANY)
    before = timetable.schedules()
    assert timetable.page(V1, OTHERS, 0) == ("open", 100, [])
    assert timetable.page(V1, MANY, 200) == ("open", 100, [])
    assert timetable.schedules() == before


def test_after_the_end_of_a_declaration_a_late_page_writes_nothing(timetable: Timetable) -> None:
    timetable.declare(V1, *MANY)
    before = timetable.everything()
    assert timetable.page(V1, MANY, 100) == ("done", 250, [])
    assert timetable.everything() == before


def test_a_declaration_that_was_broken_off_is_completed_by_another_executor(timetable: Timetable) -> None:
    timetable.page(V1, MANY)
    assert timetable.look(V1).version == ""
    assert timetable.declare(V1, *MANY) == "done"
    assert timetable.names() == {schedule.name for schedule in MANY}


def test_a_declaration_that_was_broken_off_has_removed_nothing(timetable: Timetable) -> None:
    timetable.declare(V1, *MANY)
    timetable.page(V2, OTHERS)
    timetable.page(V2, OTHERS, 100)
    assert timetable.removed == []
    assert timetable.names() >= {schedule.name for schedule in MANY}
    timetable.clock.pass_by(PATIENCE)
    assert timetable.declare(V1, *MANY) == "done"
    assert timetable.names() == {schedule.name for schedule in MANY}
    assert {timetable.definition(schedule.name).every_ms for schedule in MANY} == {MINUTE}


def test_removing_comes_in_pages_as_well(timetable: Timetable) -> None:
    timetable.declare(V1, *MANY)
    kept = MANY[:1]
    pages = [timetable.page(V2, kept), timetable.page(V2, kept, 1), timetable.page(V2, kept, 1)]
    assert [(page.state, page.at, len(page.removed)) for page in pages] == [
        ("open", 1, 100),
        ("open", 1, 100),
        ("done", 1, 49),
    ]
    assert timetable.names() == {kept[0].name}


def test_a_later_version_takes_over_in_the_middle_and_the_two_do_not_mix(timetable: Timetable) -> None:
    timetable.page(V1, MANY)
    timetable.page(V2, OTHERS)
    assert timetable.page(V1, MANY, 100) == ("held", 0, [])
    timetable.page(V2, OTHERS, 100)
    assert timetable.page(V1, MANY, 0) == ("held", 0, [])
    assert timetable.page(V2, OTHERS, 200).state == "done"
    assert timetable.names() == {schedule.name for schedule in OTHERS}
    assert {timetable.definition(schedule.name).every_ms for schedule in OTHERS} == {1000}


def test_executors_are_notified_once_when_all_is_declared(timetable: Timetable) -> None:
    with timetable.heard() as messages:
        timetable.declare(V1, *MANY)
    assert messages == ["cron"]


def test_many_that_declare_many_at_once_come_to_one_declaration(timetable: Timetable) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(timetable.declare, V1, *MANY) for _ in range(16)]
        assert {declared.result() for declared in asked} == {"done"}
    assert timetable.names() == set(timetable.due()) == {schedule.name for schedule in MANY}
    assert timetable.redis.hget(timetable.keys["cron:sources"], f"round:{SHOP}") == b"1"
