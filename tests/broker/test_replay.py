"""replay: puts dead jobs back, as the same jobs with a fresh budget."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import LANES
from fennelq.broker.trouble import ReplyError, Trouble, classify
from fennelq.model.outcome import Outcome, not_known, retried
from tests.broker.desk import DEAD, DONE, FAILURE, LIFETIMES, Desk, a_job, some_jobs
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers

DAY = 86_400_000
UNKNOWN = not_known(FAILURE, 0, DAY)


@pytest.mark.audit(unfinished=True)
def test_a_replayed_job_waits_again_as_the_same_job(desk: Desk) -> None:
    (entry,) = desk.dead(a_job(options=b'{"r":3}'))
    assert desk.do(verbs.dead.replay, [entry]) == [1]
    ((place, fields),) = desk.entries("s")
    record = desk.record()
    assert fields == {"i": "1"}
    assert (record["s"], record["p"], record["n"], record["R"]) == ("Q", f"s/{place}", "0", "1")
    assert desk.entries("dlq") == []
    (delivery,) = desk.take()
    assert (delivery.task, delivery.args, delivery.options) == ("app:welcome", b"[42]", b'{"r":3}')
    assert (delivery.tries, delivery.deliveries) == (0, 1)


def test_of_its_death_only_the_history_is_kept(desk: Desk) -> None:
    (entry,) = desk.dead()
    desk.do(verbs.dead.replay, [entry])
    record = desk.record()
    assert record.keys().isdisjoint({"y", "T", "E"})
    assert not record["z"]
    assert "no such user" in record["x"]
    assert desk.result() == []
    assert desk.record_ttl() == -1


def test_its_history_goes_on(desk: Desk) -> None:
    desk.do(verbs.dead.replay, desk.dead())
    assert [line["what"] for line in desk.history()] == ["replayed"]


def test_a_job_of_an_unknown_task_waits_again_for_somebody_who_knows_it(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redis.hset(desk.keys.record("1"), "U", desk.now() - LIFETIMES.patience_ms)
    desk.finish(desk.take(), UNKNOWN)
    desk.redis.hset(desk.keys.record("1"), "Y", "1 unknown task")
    desk.do(verbs.dead.replay, [desk.entries("dlq")[0][0]])
    assert desk.record().keys().isdisjoint({"U", "Y"})
    desk.finish(desk.take(), UNKNOWN)
    assert desk.record()["s"] == "L"


@pytest.mark.audit(unfinished=True)
def test_a_job_that_was_stranded_often_may_be_so_again(desk: Desk) -> None:
    desk.enqueue(a_job())
    for _ in range(9):
        desk.release(desk.take(), "stranded")
    desk.finish(desk.take(), DEAD)
    desk.do(verbs.dead.replay, [desk.entries("dlq")[0][0]])
    desk.release(desk.take(), "stranded")
    assert [delivery.deliveries for delivery in desk.take()] == [1]


def test_a_job_that_is_queued_again_in_its_own_lane_needs_no_note_of_it(desk: Desk) -> None:
    desk.executing(a_job(priority="high"))
    desk.recover()
    assert desk.waiting("s:high") == ["1"]
    assert "m" not in desk.record()


def test_a_record_that_was_about_to_go_stays(desk: Desk) -> None:
    (entry,) = desk.dead()
    desk.redis.pexpire(desk.keys.record("1"), DAY)
    desk.do(verbs.dead.replay, [entry])
    assert desk.record_ttl() == -1


def test_a_replayed_job_ends_like_any_other(desk: Desk) -> None:
    (entry,) = desk.dead()
    desk.do(verbs.dead.replay, [entry])
    assert desk.finish(desk.take()) == [1]
    assert desk.result() == ['{"ok":42}']
    assert desk.stats() == {"D": 1, "replayed": 1, "S": 1}


def test_a_job_may_die_and_be_replayed_again_and_again(desk: Desk) -> None:
    (entry,) = desk.dead()
    for round_ in (1, 2, 3):
        assert desk.do(verbs.dead.replay, [entry]) == [1]
        assert desk.record()["R"] == str(round_)
        desk.finish(desk.take(), DEAD)
        ((entry, _),) = desk.entries("dlq")
        assert len(desk.result()) == 1


@pytest.mark.parametrize("outcome", [DEAD, Outcome("?")], ids=["dead", "broken"])
@pytest.mark.parametrize(("priority", "lane"), LANES.items())
def test_a_replayed_job_finds_back_to_its_own_lane(
    desk: Desk, outcome: Outcome, priority: str, lane: str
) -> None:
    desk.do(verbs.dead.replay, desk.dead(a_job(priority=priority), outcome=outcome))
    assert desk.waiting(lane) == desk.everywhere() == ["1"]


@pytest.mark.parametrize(("priority", "lane"), LANES.items())
def test_a_job_that_died_in_quarantine_finds_back_to_its_own_lane(
    desk: Desk, priority: str, lane: str
) -> None:
    desk.executing(a_job(priority=priority))
    desk.recover()
    desk.take()
    desk.recover()
    desk.finish(desk.fetch(lanes=["iso"]).deliveries, DEAD)
    desk.do(verbs.dead.replay, [desk.entries("dlq")[0][0]])
    assert desk.waiting(lane) == desk.everywhere() == ["1"]


def test_a_job_that_expired_long_ago_runs_when_it_is_replayed(desk: Desk) -> None:
    (entry,) = desk.dead(a_job(expires_ms=DAY))
    desk.redis.hset(desk.keys.record("1"), "E", 1)
    desk.do(verbs.dead.replay, [entry])
    assert desk.finish(desk.take(), DONE) == [1]


def test_a_second_replay_finds_nothing(desk: Desk) -> None:
    (entry,) = desk.dead()
    desk.do(verbs.dead.replay, [entry])
    before = desk.everything()
    assert desk.do(verbs.dead.replay, [entry]) == [0]
    assert desk.everything() == before


def test_a_zombie_cannot_settle_the_replayed_job(desk: Desk) -> None:
    zombie = desk.executing()
    desk.finish(zombie, DEAD)
    desk.do(verbs.dead.replay, [desk.entries("dlq")[0][0]])
    before = desk.everything()
    assert desk.finish(zombie) == [0]
    assert desk.everything() == before


def test_each_entry_has_its_own_answer(desk: Desk) -> None:
    first, second = desk.dead(*some_jobs(2))
    assert desk.do(verbs.dead.replay, [first, "1-1", second, first]) == [1, 0, 1, 0]
    assert desk.waiting() == ["1", "2"]
    assert desk.stats()["replayed"] == 2


def test_eight_clients_replay_two_hundred_entries_once(desk: Desk) -> None:
    entries = [
        entry for page in range(2) for entry in desk.dead(*(a_job(f"{page}-{key}") for key in range(100)))
    ]

    def replay(_: int) -> int:
        pages = [desk.do(verbs.dead.replay, entries[start : start + 10]) for start in range(0, 200, 10)]
        return sum(map(sum, pages))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(replay, range(8))) == 200
    assert len(desk.waiting()) == len(set(desk.waiting())) == 200
    assert desk.entries("dlq") == []


# Idempotency keys


def test_a_replayed_job_has_its_key(desk: Desk) -> None:
    (entry,) = desk.dead(a_job(idempotency="app:welcome:42"))
    assert desk.do(verbs.dead.replay, [entry]) == [1]
    assert desk.enqueue(a_job("2", idempotency="app:welcome:42")) == [b"1"]


@pytest.mark.parametrize("lost", ["gone", "of a wrong type", "of a job that is gone"])
def test_a_replayed_job_takes_its_key_again(desk: Desk, lost: str) -> None:
    (entry,) = desk.dead(a_job(idempotency="app:welcome:42"))
    desk.redis.delete(desk.keys.idempotency("app:welcome:42"))
    if lost == "of a wrong type":
        desk.redis.rpush(desk.keys.idempotency("app:welcome:42"), "what?")
    if lost == "of a job that is gone":
        desk.redis.set(desk.keys.idempotency("app:welcome:42"), "nobody", px=DAY)
    assert desk.do(verbs.dead.replay, [entry]) == [1]
    assert desk.holder("app:welcome:42") == "1"
    assert desk.ttl(desk.keys.idempotency("app:welcome:42")) == -1


def test_a_job_whose_key_another_one_holds_stays_dead(desk: Desk) -> None:
    (entry,) = desk.dead(a_job("1", idempotency="app:welcome:42"))
    desk.redis.delete(desk.keys.idempotency("app:welcome:42"))
    desk.enqueue(a_job("2", idempotency="app:welcome:42"))
    desk.redis.hset(desk.keys.record("1"), "k", "~other")
    desk.redis.hset(desk.keys.record("1"), "k", "=app:welcome:42")
    before = desk.everything()
    assert desk.do(verbs.dead.replay, [entry]) == [-1]
    assert desk.everything() == before
    desk.do(verbs.dead.forget, [entry])


def test_a_key_with_a_window_of_its_own_is_not_taken_again(desk: Desk) -> None:
    (entry,) = desk.dead(a_job("1", idempotency="app:welcome:42", window_ms=DAY))
    desk.redis.delete(desk.keys.idempotency("app:welcome:42"))
    assert desk.do(verbs.dead.replay, [entry]) == [1]
    assert desk.holder("app:welcome:42") is None


# Bad days


def test_an_entry_whose_record_is_gone_cannot_be_replayed(desk: Desk) -> None:
    (entry,) = desk.dead()
    desk.redis.delete(desk.keys.record("1"), desk.keys.result("1"))
    assert desk.do(verbs.dead.replay, [entry]) == [0]
    assert desk.waiting() == []
    desk.do(verbs.dead.forget, [entry])


@pytest.mark.parametrize("missing", ["t", "a"])
def test_a_record_that_cannot_run_stays_dead(desk: Desk, missing: str) -> None:
    (entry,) = desk.dead()
    desk.redis.hdel(desk.keys.record("1"), missing)
    assert desk.do(verbs.dead.replay, [entry]) == [0]
    assert desk.record()["s"] == "D"


@pytest.mark.audit(lost={"mail:1"})
def test_an_entry_of_a_job_that_is_elsewhere_is_left_alone(desk: Desk) -> None:
    desk.finish(desk.executing(), retried(86_400, FAILURE))
    entry = desk.stray("dlq", i="1")
    assert desk.do(verbs.dead.replay, [entry]) == [0]
    assert desk.record()["s"] == "R"


def test_over_maxmemory_nothing_is_replayed_and_the_caller_is_told(desk: Desk, server: Server) -> None:
    (entry,) = desk.dead(a_job(idempotency="app:welcome:42"))
    before = desk.everything()
    with server.configured(maxmemory="1"), pytest.raises(ReplyError) as refused:
        desk.do(verbs.dead.replay, [entry])
    assert classify(refused.value) is Trouble.CAPACITY
    assert desk.everything() == before
    assert desk.do(verbs.dead.replay, [entry]) == [1]
