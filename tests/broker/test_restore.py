"""restore: puts dead jobs of an export back into the DLQ, each once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fennelq.broker import verbs
from fennelq.broker.trouble import ReplyError, Trouble, classify
from fennelq.broker.verbs.dead import Restored
from fennelq.model.outcome import failure_to_wire
from tests.broker.desk import FAILURE, LIFETIMES, Desk, a_job, about
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers

FIELDS: Mapping[str, str | bytes] = {
    "task": "app:welcome",
    "arguments": b"[[42],{}]",
    "options": '{"r":3}',
    "created": "1700000000000",
    "tries": "3",
    "run": "anna 1700000001000 3",
    "lane": "s:high",
    "replays": "1",
}


def a_dead_job(key: str = "1", **fields: str) -> Restored:
    """A line of an export."""
    return Restored(key, failure_to_wire(FAILURE, 3), "died long ago", {**FIELDS, **fields})


def restore(desk: Desk, *jobs: Restored) -> list[int]:
    return desk.do(verbs.dead.restore, jobs, LIFETIMES)


def test_a_restored_job_is_dead_and_has_everything_it_had(desk: Desk) -> None:
    assert restore(desk, a_dead_job()) == [1]
    ((entry, fields),) = desk.entries("dlq")
    assert (fields["i"], fields["t"], fields["e"], fields["m"], fields["y"]) == (
        "1",
        "app:welcome",
        "ValueError",
        "no such user",
        "failed",
    )
    record = desk.record()
    assert (record["s"], record["p"], record["n"], record["R"]) == ("D", f"dlq/{entry}", "3", "1")
    assert (record["a"], record["o"], record["w"]) == ("[[42],{}]", '{"r":3}', "anna 1700000001000 3")
    assert "no such user" in record["x"]
    assert "T" not in record
    assert desk.record_ttl() == -1
    assert desk.result_ttl() == about(LIFETIMES.failure_ms)
    assert [(line["what"], line["more"]) for line in desk.history()] == [("restored", "died long ago")]
    assert desk.stats() == {"restored": 1}


def test_a_restored_job_can_be_replayed_into_its_lane(desk: Desk) -> None:
    restore(desk, a_dead_job())
    assert desk.do(verbs.dead.replay, [desk.entries("dlq")[0][0]]) == [1]
    assert desk.waiting("s:high") == ["1"]
    (delivery,) = desk.take()
    assert (delivery.args, delivery.tries, delivery.fence) == (b"[[42],{}]", 0, 4)
    assert desk.finish([delivery]) == [1]


def test_a_restored_job_can_be_removed(desk: Desk) -> None:
    restore(desk, a_dead_job(idempotency="=app:welcome:42"))
    assert desk.do(verbs.dead.forget, [desk.entries("dlq")[0][0]]) == 1
    assert set(desk.everything()) <= {desk.keys["stats"], desk.keys["dlq"]}


def test_a_second_call_restores_nothing(desk: Desk) -> None:
    restore(desk, a_dead_job("1"))
    before = desk.everything()
    assert restore(desk, a_dead_job("1"), a_dead_job("1")) == [0, 0]
    assert desk.everything() == before
    assert restore(desk, a_dead_job("1"), a_dead_job("2")) == [0, 1]


def test_a_job_that_goes_on_is_left_alone(desk: Desk) -> None:
    desk.enqueue(a_job())
    assert restore(desk, a_dead_job()) == [0]
    assert desk.entries("dlq") == []
    assert desk.stats() == {}
    desk.finish(desk.take())


def test_a_free_key_is_taken(desk: Desk) -> None:
    restore(desk, a_dead_job(idempotency="=app:welcome:42"))
    assert desk.holder("app:welcome:42") == "1"
    assert desk.enqueue(a_job("2", idempotency="app:welcome:42")) == [b"1"]


def test_a_key_that_another_job_has_is_not_taken(desk: Desk) -> None:
    desk.enqueue(a_job("2", idempotency="app:welcome:42"))
    restore(desk, a_dead_job(idempotency="=app:welcome:42"))
    ((entry, _),) = desk.entries("dlq")
    assert desk.holder("app:welcome:42") == "2"
    assert desk.do(verbs.dead.replayable, [entry]) == [-1]
    assert desk.do(verbs.dead.forget, [entry]) == 1
    assert desk.holder("app:welcome:42") == "2"
    desk.finish(desk.take())


def test_a_key_with_a_window_is_not_taken(desk: Desk) -> None:
    restore(desk, a_dead_job(idempotency="~app:welcome:42"))
    assert desk.holder("app:welcome:42") is None


def test_over_maxmemory_nothing_is_restored_and_the_caller_gets_an_error(desk: Desk, server: Server) -> None:
    before = desk.everything()
    with server.configured(maxmemory="1"), pytest.raises(ReplyError) as refused:
        restore(desk, a_dead_job())
    assert classify(refused.value) is Trouble.CAPACITY
    assert desk.everything() == before


def test_a_restored_job_is_in_its_group(desk: Desk) -> None:
    job = a_dead_job()
    signed = job._replace(failure=failure_to_wire(FAILURE._replace(fingerprint="0a1b2c3d"), 3))
    assert restore(desk, signed, signed._replace(key="2"), a_dead_job("3")) == [1, 1, 1]
    index = desk.do(verbs.dead.groups)
    assert sorted((group.jobs, group.fingerprint) for group in index.groups)[1] == (2, "0a1b2c3d")
    assert index.is_complete
    desk.do(verbs.dead.forget, [entry for entry, _ in desk.entries("dlq")])
