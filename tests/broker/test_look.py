"""look: what there is to do about recurring jobs, and since when an executor has been looking."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from tests.broker.timetable import MINUTE, NEXT, NOW, OTHER, SHOP, V1, V2, Timetable, a_schedule
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers

LATE, GONE = 1000, 60_000


def test_with_nothing_scheduled_there_is_nothing_to_do(timetable: Timetable) -> None:
    look = timetable.look()
    assert (look.now_ms, look.wait_ms, look.handing, look.queued) == (NOW, -1, 0, 0)
    assert (look.due, look.waiting, look.turn, look.version) == ([], [], False, "")


def test_it_returns_how_long_until_the_next_is_due(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule("a"), a_schedule("b", every_ms=3_600_000))
    look = timetable.look()
    assert (look.wait_ms, look.due, look.version) == (NEXT - NOW, [], V1)


def test_what_is_due_is_returned_with_all_that_a_claim_needs(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.clock.stop_at(NEXT)
    (seen,) = timetable.look().due
    assert seen == verbs.schedules.Seen("report", a_schedule().to_wire(), NEXT, "", False, b"")
    timetable.tick(seen, runs=[NEXT], queued=[NEXT + 1])
    timetable.clock.pass_by(MINUTE)
    (seen,) = timetable.look().due
    assert seen.last_job == f"mail:cron.report.{NEXT}"
    assert (seen.last_job_on_its_way, seen.queued) == (True, f"[{NEXT + 1}]".encode())
    timetable.hand_over()
    assert timetable.look().due[0].last_job_on_its_way is False


def test_a_schedule_is_due_at_its_time_and_not_before(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.clock.stop_at(NEXT - 1)
    assert (timetable.look().due, timetable.look().wait_ms) == ([], 1)
    timetable.clock.stop_at(NEXT)
    assert [seen.name for seen in timetable.look().due] == ["report"]


def test_paused_ones_are_not_due(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.schedule("pause")
    timetable.clock.pass_by(MINUTE)
    assert (timetable.look().due, timetable.look().wait_ms) == ([], -1)


def test_many_due_ones_come_in_pages_the_longest_due_first(timetable: Timetable) -> None:
    timetable.declare(V1, *(a_schedule(f"s{n}", every_ms=1000 * (n + 1)) for n in range(5)))
    timetable.clock.pass_by(10_000)
    assert [seen.name for seen in timetable.look(limit=2).due] == ["s0", "s1"]


def test_a_page_has_at_most_a_megabyte_or_one_schedule(timetable: Timetable) -> None:
    large = b'[["%s"],{}]' % (b"x" * 700_000)
    timetable.declare(V1, *(a_schedule(f"s{n}", args=large) for n in range(4)))
    timetable.clock.pass_by(MINUTE)
    assert len(timetable.look().due) == 2


def test_the_next_page_comes_after_the_last_one_of_the_page_before(timetable: Timetable) -> None:
    timetable.declare(V1, *(a_schedule(f"s{n}") for n in range(5)))
    timetable.clock.pass_by(MINUTE)
    first = timetable.look(limit=2)
    second = timetable.look(limit=2, after=first.last)
    third = timetable.look(limit=2, after=second.last)
    assert [names_of(look) for look in (first, second, third)] == [["s0", "s1"], ["s2", "s3"], ["s4"]]
    assert [look.more for look in (first, second, third)] == [True, True, False]
    assert first.last == (str(NEXT), b"s1")
    assert timetable.look(after=third.last)[7:] == ([], [], 0, False, None)


def names_of(look: verbs.schedules.Look) -> list[str]:
    return [seen.name for seen in look.due]


def test_what_is_not_due_yet_is_on_no_page(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule("a"), a_schedule("b"), a_schedule("c", every_ms=3_600_000))
    timetable.clock.stop_at(NEXT)
    look = timetable.look(limit=2)
    assert (names_of(look), look.more) == (["a", "b"], False)
    assert timetable.look(after=look.last).due == []


def test_when_the_last_one_has_been_claimed_the_next_page_misses_none(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule("early", every_ms=1000), *(a_schedule(f"s{n}") for n in range(4)))
    timetable.clock.pass_by(MINUTE)
    first = timetable.look(limit=3)
    assert names_of(first) == ["early", "s0", "s1"]
    timetable.tick(first.due[2])
    assert names_of(timetable.look(limit=3, after=first.last)) == ["s0", "s2", "s3"]


def test_a_page_that_ends_by_its_size_reports_that_more_are_due(timetable: Timetable) -> None:
    large = b'[["%s"],{}]' % (b"x" * 700_000)
    timetable.declare(V1, *(a_schedule(f"s{n}", args=large) for n in range(3)))
    timetable.clock.pass_by(MINUTE)
    first = timetable.look()
    assert (names_of(first), first.more) == (["s0", "s1"], True)
    assert names_of(timetable.look(after=first.last)) == ["s2"]


def test_entries_that_are_dropped_are_passed_over(timetable: Timetable) -> None:
    timetable.redis.zadd(timetable.keys["cron:due"], {"ghost": 1, "phantom": 2})
    timetable.declare(V1, a_schedule())
    timetable.clock.pass_by(MINUTE)
    look = timetable.look(limit=2)
    assert (look.due, look.more, look.last) == ([], True, ("2", b"phantom"))
    assert names_of(timetable.look(limit=2, after=look.last)) == ["report"]


@pytest.mark.parametrize("next_ms", ["", "soon", "1e3"])
def test_an_entry_without_a_time_is_dropped_and_delays_no_schedule(
    timetable: Timetable, next_ms: str
) -> None:
    timetable.declare(V1, a_schedule("a"), a_schedule("b"))
    timetable.redis.hset(timetable.keys.schedule("a"), "next", next_ms)
    timetable.clock.pass_by(MINUTE)
    assert [seen.name for seen in timetable.look().due] == ["b"]
    assert set(timetable.due()) == {"b"}


@pytest.mark.parametrize("field", ["definition", "next"])
def test_an_entry_of_which_something_is_missing_is_dropped(timetable: Timetable, field: str) -> None:
    timetable.declare(V1, a_schedule("a"), a_schedule("b"))
    timetable.redis.hdel(timetable.keys.schedule("a"), field)
    timetable.clock.pass_by(MINUTE)
    assert [seen.name for seen in timetable.look().due] == ["b"]
    assert set(timetable.due()) == {"b"}


def test_an_entry_without_a_schedule_is_dropped(timetable: Timetable) -> None:
    timetable.redis.zadd(timetable.keys["cron:due"], {"ghost": 1})
    assert timetable.look().due == []
    assert timetable.due() == {}


# Late, or missed


def test_the_first_who_ever_looks_begins_the_watch(timetable: Timetable) -> None:
    assert timetable.look(again=False).awake_ms == NOW


def test_while_an_executor_looks_as_promised_nothing_is_missed(timetable: Timetable) -> None:
    timetable.look(again=False)
    for again in (True, False, True):
        timetable.clock.pass_by(4000)
        assert timetable.look(again=again).awake_ms == NOW


def test_a_newcomer_who_finds_the_promise_broken_begins_the_watch_anew(timetable: Timetable) -> None:
    timetable.look(again=False, longest_ms=4000)
    timetable.clock.pass_by(4000 + LATE)
    assert timetable.look(again=False).awake_ms == NOW
    timetable.clock.pass_by(4000 + LATE + 1)
    assert timetable.look(again=False).awake_ms == timetable.clock.now()


def test_the_promise_is_the_next_due_time_when_that_is_sooner(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule(every_ms=1000))
    timetable.look(again=False)
    timetable.clock.pass_by(1000 + LATE + 1)
    assert timetable.look(again=False).awake_ms == timetable.clock.now()


def test_what_one_newcomer_finds_missed_is_missed_for_the_others_too(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.look(again=False)
    timetable.clock.pass_by(3 * MINUTE)
    awake = timetable.look(again=False).awake_ms
    timetable.clock.pass_by(1)
    assert timetable.look(again=False).awake_ms == awake
    assert timetable.look(again=True).awake_ms == awake


def test_one_who_was_there_and_is_late_has_missed_nothing(timetable: Timetable) -> None:
    timetable.look(again=False)
    timetable.clock.pass_by(GONE)
    assert timetable.look(again=True).awake_ms == NOW


def test_after_more_than_a_minute_no_executor_was_there(timetable: Timetable) -> None:
    timetable.look(again=False)
    timetable.clock.pass_by(GONE + 1)
    assert timetable.look(again=True).awake_ms == timetable.clock.now()


def test_an_executor_with_something_to_claim_gets_time_for_it(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule(every_ms=1000))
    timetable.clock.pass_by(1000)
    awake = timetable.look(again=False).awake_ms
    timetable.clock.pass_by(2 * LATE)
    assert timetable.look(again=False).awake_ms == awake


def test_it_is_given_that_time_even_if_the_next_is_due_in_a_moment(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule("a", every_ms=1000), a_schedule("b", start_ms=NOW + 1010))
    timetable.clock.pass_by(1000)
    awake = timetable.look(again=False).awake_ms
    timetable.clock.pass_by(LATE + 500)
    assert timetable.look(again=False).awake_ms == awake


def test_a_longer_promise_is_not_broken_by_one_who_looks_more_often(timetable: Timetable) -> None:
    timetable.look(again=False, longest_ms=20_000)
    timetable.look(again=True, longest_ms=1000)
    timetable.clock.pass_by(20_000)
    assert timetable.look(again=False).awake_ms == NOW


def test_when_the_servers_clock_jumps_back_promises_do_not_hold_for_ever(timetable: Timetable) -> None:
    timetable.look(again=False)
    timetable.clock.pass_by(-60 * MINUTE)
    timetable.look(again=True)
    timetable.clock.pass_by(2 * GONE)
    assert timetable.look(again=False).awake_ms == timetable.clock.now()


def test_after_a_flush_the_watch_begins_anew(timetable: Timetable, server: Server) -> None:
    timetable.declare(V1, a_schedule())
    timetable.look(again=False)
    server.flush()
    timetable.clock.stop_at(NOW + MINUTE)
    look = timetable.look(again=True)
    assert (look.awake_ms, look.version, look.due) == (NOW + MINUTE, "", [])


# Turns


def waiting(timetable: Timetable, *names: str) -> None:
    """Schedules with runs that queue."""
    timetable.declare(V1, *(a_schedule(name, overlap="queue") for name in names))
    timetable.clock.stop_at(NEXT)
    for seen in timetable.look().due:
        timetable.tick(seen, runs=[NEXT], queued=[NEXT + 1, NEXT + 2])


def test_runs_that_queue_are_returned_to_one_executor(timetable: Timetable) -> None:
    waiting(timetable, "a")
    first, second = timetable.look(V1), timetable.look(V2)
    assert (first.turn, second.turn) == (True, False)
    assert [(seen.name, verbs.schedules.runs_of(seen.queued)) for seen in first.waiting] == [
        ("a", [NEXT + 1, NEXT + 2])
    ]
    assert second.waiting == []
    assert first.queued == second.queued == 1


def test_the_next_turn_belongs_to_another_executor(timetable: Timetable) -> None:
    waiting(timetable, "a")
    assert timetable.look().turn
    timetable.clock.pass_by(199)
    assert not timetable.look().turn
    timetable.clock.pass_by(1)
    assert timetable.look().turn


def test_hand_overs_are_looked_after_in_turns_as_well(timetable: Timetable) -> None:
    waiting(timetable, "a")
    timetable.redis.delete(timetable.keys["cron:queued"])
    first, second = timetable.look(), timetable.look()
    assert (first.handing, first.turn) == (1, True)
    assert (second.handing, second.turn) == (1, False)
    timetable.hand_over()
    timetable.clock.pass_by(1000)
    assert not timetable.look().turn


def test_runs_of_a_paused_schedule_wait_until_it_is_resumed(timetable: Timetable) -> None:
    waiting(timetable, "a")
    timetable.schedule("pause", "a")
    look = timetable.look()
    assert (look.queued, look.waiting) == (1, [])
    assert timetable.queued("a") == [NEXT + 1, NEXT + 2]


def test_runs_of_a_schedule_that_is_gone_are_forgotten(timetable: Timetable) -> None:
    timetable.redis.hset(timetable.keys["cron:queued"], "ghost", "[1]")
    assert timetable.look().waiting == []
    assert timetable.queued("ghost") is None


def test_those_with_runs_that_queue_are_no_more_than_a_megabyte_or_one_at_a_time(
    timetable: Timetable,
) -> None:
    large = b'[["%s"],{}]' % (b"x" * 700_000)
    timetable.declare(V1, *(a_schedule(f"s{n}", overlap="queue", args=large) for n in range(4)))
    for n in range(4):
        timetable.redis.hset(timetable.keys["cron:queued"], f"s{n}", "[1]")
    assert len(timetable.look().waiting) == 2


def test_large_schedules_that_are_due_leave_room_for_runs_that_queue(timetable: Timetable) -> None:
    large = b'[["%s"],{}]' % (b"x" * 700_000)
    due = [a_schedule(f"due{n}", args=large) for n in range(2)]
    timetable.declare(V1, *due, *(a_schedule(f"s{n}", every_ms=3_600_000) for n in range(3)))
    for n in range(3):
        timetable.redis.hset(timetable.keys["cron:queued"], f"s{n}", "[1]")
    timetable.clock.stop_at(NEXT)
    look = timetable.look()
    assert (len(look.due), len(look.waiting)) == (2, 3)


def test_runs_that_queue_count_for_the_size_of_a_page(timetable: Timetable) -> None:
    timetable.declare(V1, *(a_schedule(f"s{n}") for n in range(4)))
    many = b"[%s]" % b",".join([b"1795000000000"] * 50_000)
    for n in range(4):
        timetable.redis.hset(timetable.keys["cron:queued"], f"s{n}", many)
    assert len(timetable.look().waiting) == 2
    timetable.clock.pass_by(MINUTE)
    assert len(timetable.look().due) == 2


# Services


def test_it_returns_which_version_of_this_service_holds(timetable: Timetable) -> None:
    timetable.declare(V1, a_schedule())
    timetable.declare(V2, a_schedule("b"), service=OTHER)
    assert [timetable.look(V1, service=service).version for service in (SHOP, OTHER)] == [V1, V2]
    assert timetable.look(service="third:shop").version == ""


def test_a_look_records_that_its_service_lives_unless_it_has_not_declared(
    timetable: Timetable,
) -> None:
    timetable.declare(V1, a_schedule())
    timetable.clock.pass_by(1000)
    timetable.look(V2)
    timetable.look(V1, service=OTHER)
    assert timetable.broker.ask(verbs.schedules.service_seen(timetable.keys, SHOP)) == NOW + 1000
    assert timetable.broker.ask(verbs.schedules.service_seen(timetable.keys, OTHER)) is None


def test_of_many_schedules_with_runs_that_queue_none_is_passed_over_for_ever(timetable: Timetable) -> None:
    waiting(timetable, *(f"s{n}" for n in range(9)))
    met = set[str]()
    for _ in range(60):
        timetable.clock.pass_by(200)
        met |= {seen.name for seen in timetable.look(limit=3).waiting}
    assert len(met) == 9


def test_over_maxmemory_one_can_look(timetable: Timetable, server: Server) -> None:
    timetable.declare(V1, a_schedule())
    timetable.clock.pass_by(MINUTE)
    with server.configured(maxmemory="1"):
        assert len(timetable.look().due) == 1
