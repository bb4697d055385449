"""forget: removes dead jobs for good."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from fennelq.model.outcome import retried
from tests.broker.desk import DEAD, FAILURE, Desk, a_job, some_jobs
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers

DAY = 86_400_000


@pytest.mark.parametrize("window", [0, DAY])
def test_entry_record_result_and_key_go_together(desk: Desk, window: int) -> None:
    (entry,) = desk.dead(a_job(idempotency="app:welcome:42", window_ms=window))
    assert desk.do(verbs.dead.forget, [entry]) == 1
    assert desk.entries("dlq") == []
    assert desk.record() == {}
    assert desk.result() == []
    assert desk.holder("app:welcome:42") is None
    assert desk.stats()["purged"] == 1


def test_a_history_goes_along(desk: Desk) -> None:
    desk.finish(desk.executing(), retried(0, FAILURE))
    desk.do(verbs.queues.promote, 100)
    desk.finish(desk.take(), DEAD)
    assert len(desk.history()) == 1
    desk.do(verbs.dead.forget, [desk.entries("dlq")[0][0]])
    assert desk.history() == []


def test_only_those_named_are_removed(desk: Desk) -> None:
    entries = desk.dead(*some_jobs(3))
    assert desk.do(verbs.dead.forget, [entries[0], entries[2]]) == 2
    assert desk.waiting("dlq") == ["2"]
    assert desk.record("2")["s"] == "D"
    assert desk.stats()["purged"] == 2


def test_what_is_gone_is_not_counted(desk: Desk) -> None:
    (entry,) = desk.dead()
    desk.do(verbs.dead.forget, [entry])
    before = desk.everything()
    assert desk.do(verbs.dead.forget, [entry, "1-1"]) == 0
    assert desk.everything() == before


def test_nobody_forgotten_is_nobody_counted(desk: Desk) -> None:
    assert desk.do(verbs.dead.forget, ["1-1"]) == 0
    assert desk.stats() == {}


def test_a_job_that_was_replayed_meanwhile_is_left_alone(desk: Desk) -> None:
    (entry,) = desk.dead()
    desk.do(verbs.dead.replay, [entry])
    assert desk.do(verbs.dead.forget, [entry]) == 0
    assert desk.waiting() == ["1"]
    assert desk.record()["s"] == "Q"


def test_a_stray_entry_goes_and_the_job_that_is_elsewhere_stays(desk: Desk) -> None:
    desk.enqueue(a_job(idempotency="app:welcome:42"))
    entry = desk.stray("dlq", i="1")
    assert desk.do(verbs.dead.forget, [entry]) == 1
    assert desk.entries("dlq") == []
    assert desk.everywhere() == ["1"]
    assert desk.holder("app:welcome:42") == "1"


def test_an_entry_that_was_not_written_by_an_arrow_goes(desk: Desk) -> None:
    entry = desk.stray("dlq", what="this")
    assert desk.do(verbs.dead.forget, [entry]) == 1
    assert desk.entries("dlq") == []


@pytest.mark.audit(lost={"mail:1"})
def test_a_record_of_a_wrong_type_is_left_to_whoever_made_it(desk: Desk) -> None:
    (entry,) = desk.dead()
    desk.redis.delete(desk.keys.record("1"))
    desk.redis.set(desk.keys.record("1"), "what?")
    assert desk.do(verbs.dead.forget, [entry]) == 1
    assert desk.entries("dlq") == []
    assert desk.redis.get(desk.keys.record("1")) == b"what?"


@pytest.mark.parametrize("kind", ["another job's", "of a wrong type"])
def test_a_key_that_is_not_its_own_is_left_alone(desk: Desk, kind: str) -> None:
    (entry,) = desk.dead(a_job("1", idempotency="app:welcome:42"))
    desk.redis.delete(desk.keys.idempotency("app:welcome:42"))
    if kind == "of a wrong type":
        desk.redis.rpush(desk.keys.idempotency("app:welcome:42"), "what?")
    else:
        desk.enqueue(a_job("2", idempotency="app:welcome:42"))
    assert desk.do(verbs.dead.forget, [entry]) == 1
    assert desk.record("1") == {}
    assert desk.redis.exists(desk.keys.idempotency("app:welcome:42"))
    if kind == "of a wrong type":
        desk.redis.delete(desk.keys.idempotency("app:welcome:42"))


def test_over_maxmemory_the_dead_can_be_forgotten(desk: Desk, server: Server) -> None:
    entries = desk.dead(*some_jobs(3))
    with server.configured(maxmemory="1"):
        assert desk.do(verbs.dead.forget, entries) == 3
