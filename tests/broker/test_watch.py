"""watch: a client that waits for a job is notified of its end."""

from __future__ import annotations

from typing import Any

import pytest

from fennelq.broker import verbs
from fennelq.broker.verbs.runs import Report
from fennelq.model.outcome import Outcome, cancelled, retried, succeeded
from tests.broker.desk import DEAD, DONE, FAILURE, LIFETIMES, Desk, a_job, some_jobs
from tests.kit.clock import ServerClock
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

DAY = 86_400_000
WAIT = [("wait", "app:welcome", None)]
GONE = [("gone", None, None)]


def test_who_asks_before_the_end_is_registered(desk: Desk) -> None:
    desk.enqueue(a_job())
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == WAIT
    assert desk.record()["W"] == "me"


@pytest.mark.parametrize("where", ["queued", "executing", "scheduled", "retry"])
def test_a_job_is_waited_for_wherever_it_is(desk: Desk, where: str) -> None:
    desk.enqueue(a_job(delay_ms=DAY if where == "scheduled" else 0))
    if where in ("executing", "retry"):
        deliveries = desk.take()
        if where == "retry":
            desk.finish(deliveries, retried(86_400, FAILURE))
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == WAIT


def test_asking_again_registers_once(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES)
    before = desk.everything()
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == WAIT
    assert desk.everything() == before


def test_channels_are_distinguished_by_their_whole_names(desk: Desk) -> None:
    desk.enqueue(a_job())
    for channel in ("me:1", "me", "e:1", "me:1", "me", "a.c", "abc", "a.c"):
        desk.do(verbs.jobs.watch, channel, ["1"], LIFETIMES)
    assert desk.record()["W"] == "me:1 me e:1 a.c abc"


def test_a_record_names_so_many_processes_at_most_and_the_latest(desk: Desk) -> None:
    desk.enqueue(a_job())
    for number in range(200):
        desk.do(verbs.jobs.watch, f"process:{number}", ["1"], LIFETIMES)
    assert desk.record()["W"].split() == [f"process:{number}" for number in range(136, 200)]


def test_a_record_that_an_earlier_version_has_filled_is_cut_down(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.do(verbs.jobs.watch, "first", ["1"], LIFETIMES)
    desk.redis.hset(desk.keys.record("1"), "W", " ".join(f"old:{number}" for number in range(3000)))
    desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES)
    assert desk.record()["W"].split() == [*(f"old:{number}" for number in range(2937, 3000)), "me"]


def test_without_a_channel_one_only_looks(desk: Desk) -> None:
    desk.enqueue(a_job("1"), a_job("2"))
    desk.do(verbs.jobs.watch, "me", ["2"], LIFETIMES)
    before = desk.everything()
    assert desk.do(verbs.jobs.watch, "", ["1", "2"], LIFETIMES) == [*WAIT, *WAIT]
    assert desk.everything() == before
    desk.finish(desk.take())
    assert desk.do(verbs.jobs.watch, "", ["1", "2"], LIFETIMES) == [("end", "app:welcome", b'{"ok":42}')] * 2


def test_who_asks_after_the_end_is_answered(desk: Desk) -> None:
    desk.finish(desk.executing())
    before = desk.everything()
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == [("end", "app:welcome", b'{"ok":42}')]
    assert desk.everything() == before


def test_the_end_without_a_value_is_an_end(desk: Desk) -> None:
    desk.finish(desk.executing(), succeeded(b"", 0))
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == [("end", "app:welcome", b"")]


def test_a_dead_job_is_an_end_for_as_long_as_it_is_dead(desk: Desk) -> None:
    desk.finish(desk.executing(), DEAD)
    envelope = DEAD.value
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == [("end", "app:welcome", envelope)]
    desk.redis.delete(desk.keys.result("1"))
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == [("end", "app:welcome", envelope)]
    assert "W" not in desk.record()


def test_a_cancelled_job_is_an_end_for_as_long_as_its_record_lives(desk: Desk) -> None:
    desk.finish(desk.executing(), cancelled('so "be" it', 60_000))
    envelope = b'{"cancelled":"so \\"be\\" it"}'
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == [("end", "app:welcome", envelope)]
    desk.redis.delete(desk.keys.result("1"))
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == [("end", "app:welcome", envelope)]


def test_a_result_that_is_no_longer_kept_is_gone(desk: Desk) -> None:
    desk.finish(desk.executing(), DONE)
    desk.redis.delete(desk.keys.result("1"))
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == [("gone", "app:welcome", None)]
    assert "W" not in desk.record()


def test_an_unknown_job_is_gone_and_leaves_no_trace(desk: Desk) -> None:
    before = desk.everything()
    assert desk.do(verbs.jobs.watch, "me", ["missing"], LIFETIMES) == GONE
    assert desk.everything() == before


@pytest.mark.audit(lost={"mail:1"})
def test_a_record_of_a_wrong_type_is_gone(desk: Desk) -> None:
    desk.redis.set(desk.keys.record("1"), "what?")
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == GONE


@pytest.mark.audit(lost={"mail:1"})
def test_a_result_is_returned_although_the_record_is_of_a_wrong_type(desk: Desk) -> None:
    desk.finish(desk.executing())
    desk.redis.delete(desk.keys.record("1"))
    desk.redis.set(desk.keys.record("1"), "what?")
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == [("end", None, b'{"ok":42}')]


@pytest.mark.audit(lost={"mail:1"})
def test_a_result_of_a_wrong_type_does_not_count_as_an_end(desk: Desk) -> None:
    desk.executing()
    desk.redis.set(desk.keys.result("1"), "what?")
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == WAIT


def test_a_replayed_job_is_waited_for_again(desk: Desk) -> None:
    desk.do(verbs.dead.replay, desk.dead())
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == WAIT


def test_each_job_has_its_own_answer(desk: Desk) -> None:
    desk.finish(desk.executing())
    desk.enqueue(a_job("2"))
    assert desk.do(verbs.jobs.watch, "me", ["1", "missing", "2"], LIFETIMES) == [
        ("end", "app:welcome", b'{"ok":42}'),
        *GONE,
        *WAIT,
    ]


def test_over_maxmemory_one_can_wait(desk: Desk, server: Server) -> None:
    desk.enqueue(*some_jobs(2))
    with server.configured(maxmemory="1"):
        assert desk.do(verbs.jobs.watch, "me", ["1", "2"], LIFETIMES) == WAIT * 2


# Following


PROGRESS = b'[1,1,3,10,"rows"]'


def test_who_follows_is_registered_for_the_end_and_for_progress(desk: Desk) -> None:
    desk.enqueue(a_job())
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES, follows=True) == WAIT
    assert {name: desk.record()[name] for name in "WG"} == {"W": "me", "G": "me"}
    desk.do(verbs.jobs.watch, "waiter", ["1"], LIFETIMES)
    assert {name: desk.record()[name] for name in "WG"} == {"W": "me waiter", "G": "me"}


def test_who_follows_gets_the_latest_progress_with_every_look(desk: Desk) -> None:
    deliveries = desk.executing(*some_jobs(2))
    desk.do(verbs.runs.note, [Report(deliveries[1], PROGRESS)])
    looked = [*WAIT, ("wait", "app:welcome", PROGRESS)]
    assert desk.do(verbs.jobs.watch, "me", ["1", "2"], LIFETIMES, follows=True) == looked
    assert desk.do(verbs.jobs.watch, "", ["1", "2"], LIFETIMES, follows=True) == looked
    assert desk.do(verbs.jobs.watch, "me", ["1", "2"], LIFETIMES) == [*WAIT, *WAIT]


def test_without_a_channel_one_looks_at_progress_and_registers_nothing(desk: Desk) -> None:
    desk.executing(*some_jobs(2))
    desk.do(verbs.jobs.watch, "me", ["2"], LIFETIMES, follows=True)
    before = desk.everything()
    assert desk.do(verbs.jobs.watch, "", ["1", "2"], LIFETIMES, follows=True) == [*WAIT, *WAIT]
    assert desk.everything() == before


def test_following_again_registers_once(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES, follows=True)
    before = desk.everything()
    for _ in range(3):
        assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES, follows=True) == WAIT
    assert desk.everything() == before


def test_a_record_names_so_many_followers_at_most_and_the_latest(desk: Desk) -> None:
    desk.enqueue(a_job())
    for number in range(100):
        desk.do(verbs.jobs.watch, f"process:{number}", ["1"], LIFETIMES, follows=True)
    assert desk.record()["G"].split() == [f"process:{number}" for number in range(36, 100)]


@pytest.mark.parametrize("outcome", [DONE, DEAD, cancelled("no", 60_000), succeeded(b"", 0)])
def test_the_end_of_a_job_ends_what_was_registered(desk: Desk, outcome: Outcome) -> None:
    deliveries = desk.executing()
    desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES, follows=True)
    desk.finish(deliveries, outcome)
    assert {"W", "G"} & desk.record().keys() == set()


def test_who_follows_is_still_registered_after_a_failed_try(desk: Desk) -> None:
    deliveries = desk.executing()
    desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES, follows=True)
    desk.finish(deliveries, retried(86_400, FAILURE))
    assert {name: desk.record()[name] for name in "WG"} == {"W": "me", "G": "me"}


def test_who_follows_a_job_that_has_ended_is_answered_and_not_registered(desk: Desk) -> None:
    desk.finish(desk.executing())
    before = desk.everything()
    assert desk.do(verbs.jobs.watch, "me", ["1", "missing"], LIFETIMES, follows=True) == [
        ("end", "app:welcome", b'{"ok":42}'),
        *GONE,
    ]
    assert desk.everything() == before


# What has expired before its turn

EXPIRED = [("end", "app:welcome", b'{"cancelled":"expired"}')]
GATE = "c1:account/17"
PLACES: dict[str, dict[str, Any]] = {
    "in a lane": {"priority": "low"},
    "in a line": {"gates": GATE},
    "scheduled for later": {"delay_ms": DAY},
}


@pytest.fixture
def clock(server_clock: ServerClock) -> ServerClock:
    """The clock of the server, which stands."""
    server_clock.stop_at(1_795_000_000_000)
    return server_clock


@pytest.mark.parametrize("given", PLACES.values(), ids=PLACES)
def test_a_job_that_has_expired_before_its_turn_ends_for_all_who_wait_for_it(
    desk: Desk, clock: ServerClock, given: dict[str, Any]
) -> None:
    desk.enqueue(a_job("first", gates=GATE), a_job("1", expires_ms=1000, **given))
    clock.pass_by(999)
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == WAIT
    clock.pass_by(1)
    with desk.listening("me") as heard:
        assert desk.do(verbs.jobs.watch, "you", ["1"], LIFETIMES) == EXPIRED
        assert heard() == ("me", b'mail:1\n{"cancelled":"expired"}')
    assert desk.everywhere() == ["first"]
    record = desk.record()
    assert (record["s"], record["y"], record["z"]) == ("K", "expired", "1795000001000")
    assert desk.stats() == {"K": 1}
    assert desk.do(verbs.jobs.watch, "", ["1"], LIFETIMES) == EXPIRED
    assert desk.stats() == {"K": 1}


def test_who_only_looks_learns_of_it_as_well(desk: Desk, clock: ServerClock) -> None:
    desk.enqueue(*some_jobs(3, expires_ms=1000), a_job("4"))
    clock.pass_by(1000)
    assert desk.do(verbs.jobs.watch, "", ["4", "2"], LIFETIMES) == WAIT + EXPIRED
    assert desk.waiting() == ["1", "3", "4"]


def test_a_job_that_may_have_begun_does_not_expire(desk: Desk, clock: ServerClock) -> None:
    runs, retry, stopped = desk.executing(*some_jobs(3, expires_ms=1000))
    desk.finish([retry], retried(0, FAILURE))
    desk.release([stopped], "stopped")
    clock.pass_by(DAY)
    assert desk.do(verbs.jobs.watch, "me", ["1", "2", "3"], LIFETIMES) == WAIT * 3
    desk.do(verbs.queues.promote, 100)
    assert desk.do(verbs.jobs.watch, "me", ["1", "2", "3"], LIFETIMES) == WAIT * 3
    assert sorted([runs.key, *(job.key for job in desk.take())]) == ["1", "2", "3"]


def test_a_job_whose_record_has_no_status_waits_and_expires(desk: Desk, clock: ServerClock) -> None:
    desk.enqueue(a_job(expires_ms=1000))
    desk.redis.hdel(desk.keys.record("1"), "s")
    clock.pass_by(1000)
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == EXPIRED


def test_a_job_that_was_handed_back_before_its_handler_began_expires(desk: Desk, clock: ServerClock) -> None:
    desk.release(desk.executing(a_job(expires_ms=1000)), "unstarted")
    clock.pass_by(1000)
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == EXPIRED


def test_a_job_that_was_asked_to_stop_and_handed_back_has_the_reason_of_the_request(
    desk: Desk, clock: ServerClock
) -> None:
    held = desk.executing(a_job(expires_ms=1000))
    desk.cancel("1", why="too expensive")
    desk.release(held, "unstarted")
    clock.pass_by(1000)
    assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == [
        ("end", "app:welcome", b'{"cancelled":"too expensive"}')
    ]


def test_its_slot_goes_to_the_next_in_the_line_and_an_executor_is_woken(
    desk: Desk, clock: ServerClock
) -> None:
    desk.enqueue(a_job("1", gates=GATE, expires_ms=1000), a_job("2", gates=GATE))
    desk.sleep("anna")
    clock.pass_by(1000)
    with desk.subscribed("anna") as heard:
        assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == EXPIRED
        assert heard() == [("anna", "look s")]
    assert [job.key for job in desk.take()] == ["2"]


def test_a_waiter_without_the_rights_to_cancel_it_waits_until_its_turn(
    desk: Desk, server: Server, clock: ServerClock
) -> None:
    desk.enqueue(a_job(expires_ms=1000))
    clock.pass_by(1000)
    with desk.as_user(server, "xack"):
        assert desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES) == WAIT
    assert desk.take() == []
    assert desk.record()["y"] == "expired"


def test_what_has_not_expired_costs_a_look_no_further_command(desk: Desk) -> None:
    desk.enqueue(a_job(expires_ms=DAY))
    look = desk.commands_of(lambda: desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES))
    assert look == {"hmget": 1, "lindex": 1}


def test_a_job_that_has_begun_costs_a_look_no_further_command_after_its_expiry(desk: Desk) -> None:
    desk.executing(a_job(expires_ms=DAY))
    desk.redis.hset(desk.keys.record("1"), "E", 1)
    look = desk.commands_of(lambda: desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES))
    assert look == {"hmget": 1, "lindex": 1}
