"""schedule: what people do to a schedule at run time."""

from __future__ import annotations

import pytest

from fennelq.broker.verbs.schedules import Change
from tests.broker.timetable import MINUTE, NEXT, NOW, PATIENCE, SHOP, V1, Timetable, a_schedule
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers


def test_a_schedule_is_put_and_due(timetable: Timetable) -> None:
    assert timetable.put(a_schedule()) == 1
    assert (timetable.names(), timetable.due()) == ({"report"}, {"report": NEXT})
    assert timetable.state() == {"source": "runtime", "next": str(NEXT)}


def test_put_again_it_is_changed_and_due_by_its_new_times(timetable: Timetable) -> None:
    timetable.put(a_schedule())
    timetable.put(a_schedule(every_ms=1000))
    assert timetable.due() == {"report": NOW + 1000}
    assert timetable.definition().every_ms == 1000


def test_a_change_of_anything_else_loses_no_tick(timetable: Timetable) -> None:
    timetable.put(a_schedule())
    timetable.clock.pass_by(2 * MINUTE)
    timetable.put(a_schedule(args=b"[[7],{}]"))
    assert timetable.due() == {"report": NEXT}


def test_a_paused_schedule_is_not_due_and_stays_paused_when_it_is_changed(timetable: Timetable) -> None:
    timetable.put(a_schedule())
    assert timetable.schedule("pause") == 1
    assert timetable.due() == {}
    timetable.put(a_schedule(every_ms=1000))
    assert timetable.due() == {}
    assert timetable.state()["paused"] == "1"


def test_a_resumed_schedule_goes_on_with_the_time_given(timetable: Timetable) -> None:
    timetable.put(a_schedule())
    timetable.schedule("pause")
    timetable.clock.pass_by(5 * MINUTE)
    assert timetable.schedule("resume", next_ms=NEXT + 5 * MINUTE) == 1
    assert timetable.due() == {"report": NEXT + 5 * MINUTE}
    assert "paused" not in timetable.state()


def test_resuming_what_is_not_paused_loses_no_tick(timetable: Timetable) -> None:
    timetable.put(a_schedule())
    timetable.clock.pass_by(MINUTE)
    assert timetable.schedule("resume", next_ms=NEXT + MINUTE) == 1
    assert timetable.due() == {"report": NEXT}


def test_a_removed_schedule_is_forgotten_with_all_that_was_known_of_it(timetable: Timetable) -> None:
    timetable.put(a_schedule())
    timetable.clock.stop_at(NEXT)
    timetable.tick(timetable.seen(), runs=[NEXT], queued=[NEXT + 1])
    assert timetable.schedule("remove") == 1
    assert (timetable.names(), timetable.due(), timetable.state()) == (set(), {}, {})
    assert timetable.queued() is None


def test_a_job_that_is_on_its_way_arrives_although_its_schedule_is_removed(timetable: Timetable) -> None:
    timetable.put(a_schedule())
    timetable.clock.stop_at(NEXT)
    timetable.tick(timetable.seen(), runs=[NEXT])
    timetable.schedule("remove")
    assert [*timetable.out()] == [f"mail:cron.report.{NEXT}"]


def test_a_run_by_hand_counts_and_is_the_last_job(timetable: Timetable) -> None:
    timetable.put(a_schedule())
    assert timetable.schedule("run", value="mail:by-hand") == 1
    state = timetable.state()
    assert (state["runs"], state["last_run"], state["last_job"]) == ("1", str(NOW), "mail:by-hand")
    assert timetable.due() == {"report": NEXT}


def test_a_run_by_hand_while_another_goes_on_is_not_the_one_to_wait_for(timetable: Timetable) -> None:
    timetable.put(a_schedule())
    timetable.schedule("run", value="mail:by-hand")
    timetable.schedule("run", value="")
    assert (timetable.state()["runs"], timetable.state()["last_job"]) == ("2", "mail:by-hand")


@pytest.mark.parametrize("what", ["pause", "resume", "remove", "run"])
def test_nothing_can_be_done_to_what_does_not_exist(timetable: Timetable, what: Change) -> None:
    before = timetable.everything()
    assert timetable.schedule(what) == 0
    assert timetable.everything() == before


@pytest.mark.parametrize("what", ["put", "remove"])
def test_only_the_code_changes_or_removes_what_it_declares(timetable: Timetable, what: Change) -> None:
    timetable.declare(V1, a_schedule())
    before = timetable.everything()
    assert timetable.schedule(what, value=a_schedule(every_ms=1000).to_wire(), next_ms=1) == -1
    assert timetable.everything() == before


@pytest.mark.parametrize("what", ["pause", "resume", "run"])
def test_what_the_code_declares_can_be_paused_and_run(timetable: Timetable, what: Change) -> None:
    timetable.declare(V1, a_schedule())
    assert timetable.schedule(what, next_ms=NEXT) == 1


def test_executors_are_notified_of_what_was_done_and_of_nothing_else(timetable: Timetable) -> None:
    with timetable.heard() as messages:
        timetable.put(a_schedule())
        timetable.schedule("pause")
        timetable.schedule("resume", next_ms=NEXT)
        timetable.schedule("remove")
        timetable.schedule("pause")
    assert messages == ["cron"] * 4


def test_over_maxmemory_a_schedule_can_be_paused(timetable: Timetable, server: Server) -> None:
    timetable.put(a_schedule())
    with server.configured(maxmemory="1"):
        assert timetable.schedule("pause") == 1


@pytest.mark.parametrize("verb", ["put", "remove"])
def test_what_a_service_that_is_there_declares_is_changed_in_its_code_only(
    timetable: Timetable, verb: Change
) -> None:
    timetable.declare(V1, a_schedule())
    timetable.clock.pass_by(PATIENCE - 1)
    before = timetable.everything()
    assert timetable.schedule(verb, value=a_schedule(every_ms=1000).to_wire()) == -1
    assert timetable.everything() == before


def test_what_a_service_that_is_gone_has_declared_can_be_removed(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule(), a_schedule("b"))
    timetable.clock.pass_by(PATIENCE)
    assert timetable.schedule("put", value=a_schedule(every_ms=1000).to_wire()) == -1
    assert timetable.schedule("remove") == 1
    assert timetable.names() == {"b"}
    assert timetable.owned(SHOP) == {"b": 1}


def test_it_comes_back_with_its_service(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.clock.pass_by(PATIENCE)
    timetable.schedule("remove")
    assert timetable.look(V1).version == ""
    timetable.declare(V1, a_schedule())
    assert timetable.names() == {"report"}


def test_what_a_fennelq_from_before_services_has_declared_can_be_removed_when_it_is_gone(
    timetable: Timetable,
) -> None:
    timetable.put(a_schedule())
    timetable.redis.hset(timetable.keys.schedule("report"), "source", "code")
    timetable.redis.hset(timetable.keys["cron:meta"], "heard", str(NOW))
    assert timetable.schedule("remove") == -1
    timetable.clock.pass_by(PATIENCE)
    assert timetable.schedule("remove") == 1
    assert timetable.names() == set()


def test_a_service_of_which_nothing_is_known_is_gone(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.redis.delete(timetable.keys["cron:sources"])
    assert timetable.schedule("remove") == 1
    assert timetable.names() == set()
