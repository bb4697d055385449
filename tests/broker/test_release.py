"""release: hands jobs back untouched."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from fennelq.model.outcome import retried
from tests.broker.desk import FAILURE, Desk, Reason, a_job, some_jobs
from tests.kit.server import Server

DAY = 86_400_000

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]


def test_a_released_job_waits_again_under_a_new_token(desk: Desk) -> None:
    (delivery,) = desk.executing()
    assert desk.release([delivery]) == 1
    ((entry, fields),) = desk.entries("s")
    record = desk.record()
    assert entry != delivery.entry
    assert fields == {"i": "1"}
    assert (record["s"], record["p"]) == ("Q", f"s/{entry}")
    assert desk.pending() == {}
    assert desk.stats() == {"released": 1}


def test_a_release_costs_neither_a_try_nor_a_delivery(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.finish(desk.take(), retried(0, FAILURE))
    desk.do(verbs.queues.promote, 100)
    for _ in range(3):
        desk.release(desk.take())
    (delivery,) = desk.take()
    assert (delivery.tries, delivery.deliveries) == (1, 1)


def test_the_delivery_number_of_the_entry_is_kept(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redelivered("1", 3)
    desk.release(desk.take())
    assert desk.entries("s")[0][1] == {"i": "1", "n": "3"}


def test_a_job_goes_back_to_its_own_lane(desk: Desk) -> None:
    desk.release(desk.executing(a_job("1", priority="high"), a_job("2"), a_job("3", priority="low")))
    assert [desk.waiting(lane) for lane in ("s:high", "s", "s:low")] == [["1"], ["2"], ["3"]]


def test_a_job_that_was_read_and_did_not_start_is_handed_back_too(desk: Desk) -> None:
    desk.enqueue(a_job())
    assert desk.release(desk.read()) == 1
    assert desk.pending() == {}
    assert [delivery.key for delivery in desk.take("berta")] == ["1"]


def test_only_the_last_fifty_lines_of_a_history_are_kept(desk: Desk) -> None:
    desk.enqueue(a_job())
    for number in range(60):
        desk.release(desk.take(f"executor-{number}"))
    assert [line["owner"] for line in desk.history()] == [f"executor-{number}" for number in range(10, 60)]


def test_only_the_owner_can_hand_back(desk: Desk) -> None:
    zombie = desk.executing()
    desk.release(zombie)
    desk.take("berta")
    before = desk.everything()
    assert desk.release(zombie) == 0
    assert desk.everything() == before


def test_a_finished_job_is_not_handed_back(desk: Desk) -> None:
    deliveries = desk.executing()
    desk.finish(deliveries)
    before = desk.everything()
    assert desk.release(deliveries) == 0
    assert desk.everything() == before


def test_a_job_that_was_not_taken_cannot_be_handed_back(desk: Desk) -> None:
    (delivery,) = desk.executing()
    desk.release([delivery])
    entry, _ = desk.entries("s")[0]
    before = desk.everything()
    assert desk.release([delivery._replace(entry=entry)]) == 0
    assert desk.everything() == before


def test_what_is_left_of_a_job_that_is_elsewhere_is_removed(desk: Desk) -> None:
    desk.enqueue(a_job("1", delay_ms=86_400_000))
    desk.redis.xadd(desk.keys["s"], {"i": "1", "n": "1"})
    read = desk.read()
    assert desk.release(read) == 0
    assert desk.everywhere() == ["1"]
    assert desk.pending() == {}
    assert desk.stats() == {}


def test_an_entry_whose_record_is_gone_is_removed(desk: Desk) -> None:
    deliveries = desk.executing(*some_jobs(2))
    desk.redis.delete(desk.keys.record("1"))
    assert desk.release(deliveries) == 1
    assert desk.waiting() == ["2"]
    assert desk.pending() == {}


@pytest.mark.audit(lost={"mail:1"})
def test_a_pending_entry_that_an_operator_deleted_goes_and_takes_no_other_with_it(desk: Desk) -> None:
    deliveries = desk.executing(*some_jobs(2))
    desk.redis.xdel(desk.keys["s"], deliveries[0].entry)
    assert desk.release(deliveries) == 1
    assert desk.pending() == {}
    assert desk.waiting() == ["2"]


def test_an_entry_that_was_not_written_by_an_arrow_is_removed(desk: Desk) -> None:
    desk.redis.xadd(desk.keys["s"], {"what": "this"})
    assert desk.release(desk.read()) == 0
    assert desk.entries("s") == []
    assert desk.pending() == {}


def test_over_maxmemory_jobs_are_handed_back(desk: Desk, server: Server) -> None:
    deliveries = desk.executing(*some_jobs(3))
    with server.configured(maxmemory="1"):
        assert desk.release(deliveries) == 3
    assert desk.waiting() == ["1", "2", "3"]


def test_a_stranded_job_costs_a_delivery_from_the_tenth_time_on(desk: Desk) -> None:
    desk.enqueue(a_job())
    spent: list[int] = []
    for _ in range(12):
        held = desk.take()
        spent.append(held[0].deliveries)
        assert desk.release(held, "stranded") == 1
    assert spent == [1] * 10 + [2, 3]


def test_a_stop_costs_nothing_however_often_the_job_was_stranded(desk: Desk) -> None:
    desk.enqueue(a_job())
    for _ in range(9):
        desk.release(desk.take(), "stranded")
    for _ in range(3):
        desk.release(desk.take())
    assert desk.take()[0].deliveries == 1


def test_the_history_has_the_reason_and_the_executor_of_a_release(desk: Desk) -> None:
    desk.release(desk.executing())
    desk.release(desk.take("berta"), "stranded")
    desk.release(desk.take("cleo"), "unstarted")
    lines = desk.history()
    assert [(line["what"], line["owner"]) for line in lines] == [
        ("stopped", "anna"),
        ("stranded", "berta"),
        ("stopped", "cleo"),
    ]
    assert all(0 <= desk.now() - line["at"] < 10_000 for line in lines)
    assert desk.record()["H"] == "1"


@pytest.mark.parametrize(("why", "runs"), [("unstarted", False), ("stranded", False), ("stopped", True)])
def test_a_job_that_was_taken_and_never_entered_still_expires(desk: Desk, why: Reason, runs: bool) -> None:
    desk.enqueue(a_job("1", expires_ms=DAY))
    assert desk.release(desk.take(), why) == 1
    desk.redis.hset(desk.keys.record("1"), "E", 1)  # the day has passed
    assert [one.key for one in desk.take("berta")] == (["1"] if runs else [])
    assert desk.record("1")["s"] == ("X" if runs else "K")


def test_a_job_that_was_only_read_counts_no_start_that_began_nothing(desk: Desk) -> None:
    desk.enqueue(a_job("1"))
    desk.release(desk.read(), "stranded")
    assert "b" not in desk.record("1")
