"""finish: settles a batch of runs; only who still owns an entry may."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import orjson
import pytest

from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.connection import address_of
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import Command, as_is
from fennelq.broker.verbs.runs import Settled
from fennelq.model.fingerprint import fingerprint_of
from fennelq.model.job import Delivery
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.outcome import (
    Outcome,
    cancelled,
    died,
    failure_to_wire,
    not_known,
    retried,
    snoozed,
    succeeded,
)
from tests.broker.desk import DEAD, DONE, FAILURE, LIFETIMES, RESULT_MS, Desk, a_job, about, some_jobs
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

MINUTE = 60_000
DAY = 86_400_000
RETRY = retried(60, FAILURE)
SNOOZE = snoozed(60)
CANCELLED = cancelled("asked to", 30_000)
NOTHING = succeeded(b"", RESULT_MS)
UNKNOWN = not_known(FAILURE, 0, MINUTE)
ALL = pytest.mark.parametrize(
    "outcome", [DONE, NOTHING, DEAD, RETRY, SNOOZE, CANCELLED, UNKNOWN], ids="SNDRZKU"
)


# How it may end


@ALL
def test_a_settled_job_is_in_no_lane_any_more(desk: Desk, outcome: Outcome) -> None:
    assert desk.finish(desk.executing(), outcome) == [1]
    assert desk.entries("s") == []
    assert desk.pending() == {}
    assert desk.stats() == {outcome.kind: 1}


def test_success_keeps_the_result_and_drops_the_arguments(desk: Desk) -> None:
    (delivery,) = desk.executing()
    before = desk.now()
    assert desk.finish([delivery]) == [1]
    record = desk.record()
    assert desk.result() == ['{"ok":42}']
    assert desk.result_ttl() == about(RESULT_MS)
    assert (record["s"], record["a"], record["p"]) == ("S", "", f"s/{delivery.entry}")
    assert before <= int(record["z"]) <= desk.now()


def test_success_without_a_value_keeps_no_result(desk: Desk) -> None:
    desk.finish(desk.executing(), NOTHING)
    assert desk.record()["s"] == "N"
    assert desk.redis.exists(desk.keys.result("1")) == 0
    assert desk.record_ttl() == about(LIFETIMES.record_ms)


def test_no_result_is_kept_when_its_lifetime_is_zero(desk: Desk) -> None:
    desk.finish(desk.executing(), succeeded(b"42", 0))
    assert desk.record()["s"] == "S"
    assert desk.redis.exists(desk.keys.result("1")) == 0


def test_a_record_outlives_a_late_retry_of_its_call_and_its_result(desk: Desk) -> None:
    first, second = desk.executing(*some_jobs(2))
    short, long = succeeded(b"1", 1_000), succeeded(b"1", DAY)
    desk.settle([Settled(first, short), Settled(second, long)])
    assert desk.record_ttl("1") == about(LIFETIMES.record_ms)
    assert desk.record_ttl("2") == about(DAY)
    assert desk.result_ttl("2") == about(DAY)


@pytest.mark.parametrize("outcome", [DONE, NOTHING, CANCELLED], ids="SNK")
@pytest.mark.parametrize(("keep", "kept"), [(DAY, DAY), (1_000, LIFETIMES.record_ms)])
def test_a_record_is_kept_for_as_long_as_the_job_may_be_handed_over_again(
    desk: Desk, outcome: Outcome, keep: int, kept: int
) -> None:
    desk.finish(desk.executing(a_job(keep_ms=keep)), outcome)
    assert desk.record_ttl() == about(kept)


def test_a_dead_job_is_in_the_dlq_and_its_record_never_expires(desk: Desk) -> None:
    (delivery,) = desk.executing()
    before = desk.now()
    desk.finish([delivery], DEAD)
    ((entry, dead),) = desk.entries("dlq")
    record = desk.record()
    assert dead == {
        "i": "1",
        "t": "app:welcome",
        "e": "ValueError",
        "m": "no such user",
        "y": "failed",
        "f": fingerprint_of("failed", "app:welcome", "ValueError"),
    }
    assert record["p"] == f"dlq/{entry}"
    assert (record["s"], record["y"], record["n"], record["T"]) == ("D", "failed", "3", f"s/{delivery.entry}")
    assert record["a"] == "[42]"
    assert before <= int(record["z"]) <= desk.now()
    assert orjson.loads(record["x"])["traceback"] == FAILURE.traceback
    assert orjson.loads(desk.result()[0]) == {"dead": orjson.loads(record["x"])}
    assert desk.record_ttl() == -1
    assert desk.result_ttl() == about(LIFETIMES.failure_ms)


def test_the_dlq_shows_only_the_beginning_of_a_long_message(desk: Desk) -> None:
    long = FAILURE._replace(message="x" * 4000)
    desk.finish(desk.executing(), died(long, 1, MINUTE))
    assert desk.entries("dlq")[0][1]["m"] == "x" * 200
    assert orjson.loads(desk.record()["x"])["message"] == "x" * 4000


def test_a_failed_try_waits_for_its_retry(desk: Desk) -> None:
    (delivery,) = desk.executing()
    before = desk.now()
    desk.finish([delivery], RETRY)
    record = desk.record()
    assert before + MINUTE <= desk.due("retry")["1"] <= desk.now() + MINUTE
    assert (record["s"], record["p"], record["n"], record["T"]) == ("R", "retry", "1", f"s/{delivery.entry}")
    assert orjson.loads(record["x"])["message"] == "no such user"
    assert record["a"] == "[42]"
    assert "m" not in record  # the normal lane is not worth a field
    assert desk.record_ttl() == -1
    assert desk.result() == []


def test_its_history_contains_the_failed_try(desk: Desk) -> None:
    desk.finish(desk.executing(), RETRY)
    (line,) = desk.history()
    assert (line["what"], line["owner"], line["more"]) == ("failed", "anna", "ValueError")
    assert 0 <= desk.now() - line["at"] < MINUTE


def test_a_job_of_an_unknown_task_comes_back_a_little_later(desk: Desk) -> None:
    (delivery,) = desk.executing()
    before = desk.now()
    desk.finish([delivery], UNKNOWN)
    record = desk.record()
    assert before + 500 <= desk.due("sched")["1"] <= desk.now() + 500
    assert (record["s"], record["p"], record["T"]) == ("L", "sched", f"s/{delivery.entry}")
    assert record.keys().isdisjoint({"n", "x", "y"})
    assert record["z"] == ""
    assert desk.result() == []


def test_its_record_and_its_history_contain_the_reason_and_the_start(desk: Desk) -> None:
    deliveries = desk.executing()
    for starts in (1, 2):
        other = not_known(FAILURE._replace(message=f"reason {starts}"), 0, MINUTE)
        desk.finish(deliveries, other)
        assert desk.record()["Y"] == f"{starts} reason {starts}"
        desk.redis.zadd(desk.keys["sched"], {"1": 1})
        desk.do(verbs.queues.promote, 100)
        deliveries = desk.take()
    (line,) = desk.history()
    assert (line["what"], line["more"], line["owner"]) == ("failed", "reason 1", "anna")
    assert desk.finish(deliveries) == [1]


@pytest.mark.parametrize(("known_for", "pause"), [(0, 500), (5_000, 5_000), (50_000, 30_000)])
def test_the_longer_a_task_is_unknown_the_longer_are_the_pauses(
    desk: Desk, known_for: int, pause: int
) -> None:
    deliveries = desk.executing()
    before = desk.now()
    desk.redis.hset(desk.keys.record("1"), "U", before - known_for)
    desk.finish(deliveries, UNKNOWN)
    after = desk.now()
    assert before + pause <= desk.due("sched")["1"] <= after + pause + (after - before)


def test_a_task_that_stays_unknown_ends_the_job(desk: Desk) -> None:
    deliveries = desk.executing()
    desk.redis.hset(desk.keys.record("1"), "U", desk.now() - LIFETIMES.patience_ms)
    desk.finish(deliveries, UNKNOWN)
    assert desk.record()["s"] == "D"
    assert desk.waiting("dlq") == ["1"]
    assert desk.due("sched") == {}
    assert desk.stats() == {"D": 1}


def test_every_failed_try_is_counted(desk: Desk) -> None:
    desk.enqueue(a_job())
    tries = list[int]()
    for _ in range(3):
        (delivery,) = desk.take()
        tries.append(delivery.tries)
        desk.finish([delivery], retried(0, FAILURE))
        assert desk.do(verbs.queues.promote, 100)[0] == 1
    assert tries == [0, 1, 2]


def test_a_snoozed_job_is_scheduled_and_no_try_is_counted(desk: Desk) -> None:
    (delivery,) = desk.executing()
    before = desk.now()
    desk.finish([delivery], SNOOZE)
    record = desk.record()
    assert before + MINUTE <= desk.due("sched")["1"] <= desk.now() + MINUTE
    assert (record["s"], record["p"], record["T"]) == ("L", "sched", f"s/{delivery.entry}")
    assert "n" not in record


def test_waiters_of_a_cancelled_job_get_the_reason(desk: Desk) -> None:
    (delivery,) = desk.executing()
    before = desk.now()
    desk.finish([delivery], CANCELLED)
    record = desk.record()
    assert desk.result() == ['{"cancelled":"asked to"}']
    assert desk.result_ttl() == about(30_000)
    assert desk.record_ttl() == about(LIFETIMES.record_ms)
    assert (record["s"], record["y"], record["p"]) == ("K", "asked to", f"s/{delivery.entry}")
    assert before <= int(record["z"]) <= desk.now()


def test_a_batch_settles_each_job_in_its_own_way(desk: Desk) -> None:
    outcomes = [DONE, NOTHING, DEAD, RETRY, SNOOZE, CANCELLED, DONE]
    deliveries = desk.executing(*some_jobs(6), a_job("7", priority="low"))
    assert desk.settle([*map(Settled, deliveries, outcomes)]) == [1] * 7
    assert [desk.record(d.key)["s"] for d in deliveries] == ["S", "N", "D", "R", "L", "K", "S"]
    assert desk.stats() == {"S": 2, "N": 1, "D": 1, "R": 1, "Z": 1, "K": 1}
    assert desk.entries("s") == desk.entries("s:low") == []


# Whose it is


def test_a_repeated_settle_is_done_by_you(desk: Desk) -> None:
    deliveries = desk.executing()
    desk.finish(deliveries)
    before = desk.everything()
    assert desk.finish(deliveries) == [2]
    assert desk.everything() == before


@ALL
def test_every_settle_may_be_repeated(desk: Desk, outcome: Outcome) -> None:
    deliveries = desk.executing()
    desk.finish(deliveries, outcome)
    before = desk.everything()
    assert desk.finish(deliveries, outcome) == [2]
    assert desk.everything() == before


def test_a_settle_that_is_repeated_within_one_batch_counts_once(desk: Desk) -> None:
    (delivery,) = desk.executing()
    assert desk.finish([delivery, delivery]) == [1, 2]
    assert desk.stats() == {"S": 1}


@pytest.mark.parametrize("outcome", [retried(0, FAILURE), snoozed(0)], ids="RZ")
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_settle_is_still_known_when_the_job_has_gone_on(desk: Desk, outcome: Outcome, steps: int) -> None:
    deliveries = desk.executing()
    desk.finish(deliveries, outcome)
    while steps > 1 and desk.do(verbs.queues.promote, 100)[0] == 0:
        pass
    if steps > 2:
        desk.take("berta")
    before = desk.everything()
    assert desk.finish(deliveries, outcome) == [2]
    assert desk.everything() == before


def test_a_settle_is_still_known_when_the_next_run_has_ended(desk: Desk) -> None:
    first = desk.executing()
    desk.finish(first, retried(0, FAILURE))
    desk.do(verbs.queues.promote, 100)
    second = desk.take()
    desk.finish(second)
    assert desk.finish(first) == [2]
    assert desk.finish(second) == [2]
    assert desk.result() == ['{"ok":42}']


@ALL
def test_who_lost_the_job_changes_nothing(desk: Desk, outcome: Outcome) -> None:
    zombie = desk.executing()
    desk.release(zombie)
    desk.take("berta")
    before = desk.everything()
    assert desk.finish(zombie, outcome) == [0]
    assert desk.everything() == before


@ALL
def test_who_lost_a_job_that_has_not_started_again_changes_nothing(desk: Desk, outcome: Outcome) -> None:
    zombie = desk.executing()
    desk.release(zombie)
    before = desk.everything()
    assert desk.finish(zombie, outcome) == [0]
    assert desk.everything() == before


@ALL
def test_who_lost_a_job_that_has_ended_changes_nothing(desk: Desk, outcome: Outcome) -> None:
    zombie = desk.executing()
    desk.release(zombie)
    desk.finish(desk.take("berta"))
    before = desk.everything()
    assert desk.finish(zombie, outcome) == [0]
    assert desk.everything() == before


def test_who_lost_a_job_that_waits_for_a_retry_changes_nothing(desk: Desk) -> None:
    zombie = desk.executing()
    desk.release(zombie)
    desk.finish(desk.take("berta"), RETRY)
    before = desk.everything()
    assert desk.finish(zombie) == [0]
    assert desk.everything() == before


@ALL
def test_who_lost_a_job_for_good_changes_nothing(desk: Desk, outcome: Outcome) -> None:
    zombie = desk.executing()
    assert desk.recover(max_deliveries=1).dead == 1
    before = desk.everything()
    assert desk.finish(zombie, outcome) == [0]
    assert desk.everything() == before


@pytest.mark.audit(lost={"mail:1"})
def test_an_owner_whose_record_is_of_a_wrong_type_by_now_has_lost_it(desk: Desk) -> None:
    (delivery,) = desk.executing()
    desk.redis.xack(desk.keys["s"], "fq", delivery.entry)
    desk.redis.xdel(desk.keys["s"], delivery.entry)
    desk.redis.set(desk.keys.record("1"), "what?")
    assert desk.finish([delivery]) == [0]


def test_an_owner_whose_record_is_gone_has_lost_it(desk: Desk) -> None:
    (delivery,) = desk.executing()
    desk.finish([delivery])
    desk.redis.delete(desk.keys.record("1"), desk.keys.result("1"))
    assert desk.finish([delivery]) == [0]


@pytest.mark.parametrize("forgotten", ["that it began", "that it was delivered"])
def test_what_a_failover_has_forgotten_of_a_run_does_not_lose_it(desk: Desk, forgotten: str) -> None:
    """The new primary knows the job, not all that the old one has done with it, and nothing of a second job."""
    desk.enqueue(a_job("1", idempotency="order:1"), a_job("2"))
    first, second = desk.take()
    with desk.listening("app") as heard:
        desk.do(verbs.jobs.watch, "app", ["1"], LIFETIMES)
        desk.redis.hset(desk.keys.record("1"), "s", "Q")
        desk.redis.hdel(desk.keys.record("1"), "w")
        if forgotten == "that it was delivered":
            desk.redis.xack(desk.keys["s"], "fq", first.entry, second.entry)
            desk.redis.xgroup_setid(desk.keys["s"], "fq", "0")
        desk.redis.xdel(desk.keys["s"], second.entry)
        desk.redis.xack(desk.keys["s"], "fq", second.entry)
        desk.redis.delete(desk.keys.record("2"))
        assert desk.finish([first, second]) == [1, 0]
        assert heard()
    assert desk.record()["s"] == "S"
    assert desk.ttl(desk.keys.idempotency("order:1")) == about(LIFETIMES.record_ms)
    assert not desk.pending()
    assert not desk.take()


def test_a_settle_with_a_token_that_was_handed_back_changes_nothing(desk: Desk) -> None:
    deliveries = desk.executing(a_job("1"))
    desk.release(deliveries)
    before = desk.everything()
    assert desk.finish(deliveries) == [0]
    assert desk.everything() == before


def test_one_of_many_who_settle_at_once_is_the_owner(desk: Desk) -> None:
    def settle(outcome: Outcome) -> int:
        barrier.wait()
        return desk.finish([delivery], outcome)[0]

    with ThreadPoolExecutor(4) as pool:
        for key in range(25):
            (delivery,) = desk.executing(a_job(str(key)))
            barrier = threading.Barrier(4)
            answers = list(pool.map(settle, [DONE, RETRY, DEAD, CANCELLED]))
            assert sorted(answers) == [1, 2, 2, 2]
    assert sum(desk.stats().values()) == 25


# One never takes another with it


def broken(desk: Desk, key: str) -> None:
    """The job is in the DLQ, once, as broken, with a result that names this."""
    entries = [(entry, fields) for entry, fields in desk.entries("dlq") if fields["i"] == key]
    ((entry, fields),) = entries
    record = desk.record(key)
    assert (fields["t"], fields["e"], fields["y"]) == (record.get("t", ""), "Broken", "broken")
    assert (record["s"], record["y"], record["p"]) == ("D", "broken", f"dlq/{entry}")
    assert 0 <= desk.now() - int(record["z"]) < MINUTE
    assert desk.record_ttl(key) == -1
    failure = orjson.loads(desk.result(key)[0])["dead"]
    assert (failure["type"], failure["reason"]) == ("Broken", "broken")
    assert fields["m"] == failure["message"][:200]
    assert re.search(
        r"WRONGTYPE|not an integer|attempt to|Expected|must be strings|bad argument", fields["m"]
    )
    assert failure == orjson.loads(record["x"])
    assert desk.result_ttl(key) == about(LIFETIMES.failure_ms)


def in_the_middle(desk: Desk, outcome: Outcome = DONE, **given: object) -> list[Delivery]:
    """Five jobs of which the third is about to be spoiled."""
    return desk.executing(*some_jobs(2), a_job("3", **given), a_job("4"), a_job("5"))


def all_but_the_third_succeeded(desk: Desk) -> None:
    assert [desk.record(key)["s"] for key in "1245"] == ["S"] * 4
    assert desk.stats() == {"S": 4, "D": 1, "broken": 1}
    assert desk.entries("s") == []
    assert desk.pending() == {}


@ALL
def test_a_record_of_a_wrong_type_is_dead_as_broken_and_the_others_settle(
    desk: Desk, outcome: Outcome
) -> None:
    deliveries = in_the_middle(desk)
    desk.redis.delete(desk.keys.record("3"))
    desk.redis.set(desk.keys.record("3"), "what?")
    outcomes = [outcome if delivery.key == "3" else DONE for delivery in deliveries]
    assert desk.settle([*map(Settled, deliveries, outcomes)]) == [1] * 5
    broken(desk, "3")
    all_but_the_third_succeeded(desk)
    assert desk.due("retry") == desk.due("sched") == {}


@pytest.mark.parametrize("outcome", [DONE, DEAD, CANCELLED], ids="SDK")
def test_a_result_key_of_a_wrong_type_is_dead_as_broken_and_the_others_settle(
    desk: Desk, outcome: Outcome
) -> None:
    deliveries = in_the_middle(desk)
    desk.redis.set(desk.keys.result("3"), "what?")
    outcomes = [outcome if delivery.key == "3" else DONE for delivery in deliveries]
    assert desk.settle([*map(Settled, deliveries, outcomes)]) == [1] * 5
    broken(desk, "3")
    all_but_the_third_succeeded(desk)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("?"),
        Outcome("S", b'{"ok":1}', ttl_ms=cast("int", "soon")),
        Outcome("R", b"soon", failure_to_wire(FAILURE, 0)),
        Outcome("Z", b"soon"),
        Outcome("D", b"{}", b"not JSON"),
        Outcome("D", b"{}", b"[]"),
        Outcome("D", b"{}", b'{"message":"x","tries":1}'),
        Outcome("D", b"{}", b'{"type":"x","tries":1}'),
        Outcome("D", b"{}", b"null"),
    ],
    ids=str,
)
def test_an_outcome_that_cannot_be_read_is_dead_as_broken(desk: Desk, outcome: Outcome) -> None:
    deliveries = in_the_middle(desk)
    outcomes = [outcome if delivery.key == "3" else DONE for delivery in deliveries]
    assert desk.settle([*map(Settled, deliveries, outcomes)]) == [1] * 5
    broken(desk, "3")
    all_but_the_third_succeeded(desk)
    assert desk.due("retry") == desk.due("sched") == {}


@pytest.mark.parametrize("tries", [b"null", b"{}", b'"x"'])
def test_a_failure_with_an_unreadable_count_is_dead_once(desk: Desk, tries: bytes) -> None:
    failure = b'{"type":"x","message":"y","tries":%b}' % tries
    desk.finish(desk.executing(), Outcome("D", b"{}", failure, MINUTE, "failed"))
    assert desk.waiting("dlq") == ["1"]
    assert desk.record()["n"] == "0"


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("?"),
        Outcome("D", b"{}", b"{}"),
        Outcome("D", b"{}", b'{"type":"x"}'),
        Outcome("D", b"{}", b'{"type":"x","message":{},"tries":9}'),
        Outcome("D", b"{}", b"not JSON"),
    ],
    ids=str,
)
def test_a_broken_job_keeps_its_number_of_tries_in_the_record_and_in_the_failure(
    desk: Desk, outcome: Outcome
) -> None:
    deliveries = desk.executing()
    desk.redis.hset(desk.keys.record("1"), "n", "2")
    desk.finish(deliveries, outcome)
    broken(desk, "1")
    assert desk.record()["n"] == "2"
    assert orjson.loads(desk.record()["x"])["tries"] == 2


def test_a_dead_job_whose_result_cannot_be_written_has_the_tries_of_its_failure(desk: Desk) -> None:
    deliveries = desk.executing()
    desk.redis.set(desk.keys.result("1"), "what?")
    desk.finish(deliveries, Outcome("D", b"{}", failure_to_wire(FAILURE, 3), MINUTE, "failed"))
    broken(desk, "1")
    assert desk.record()["n"] == "3"
    assert orjson.loads(desk.record()["x"])["tries"] == 3


def test_a_job_whose_count_of_tries_is_not_a_number_is_dead_as_broken_and_not_retried(desk: Desk) -> None:
    deliveries = in_the_middle(desk)
    desk.redis.hset(desk.keys.record("3"), "n", "many")
    outcomes = [RETRY if delivery.key == "3" else DONE for delivery in deliveries]
    desk.settle([*map(Settled, deliveries, outcomes)])
    broken(desk, "3")
    assert desk.due("retry") == {}


def test_a_broken_job_notifies_waiting_clients(desk: Desk) -> None:
    (delivery,) = desk.executing()
    desk.redis.set(desk.keys.result("1"), "what?")
    with desk.listening("me") as heard:
        desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES)
        desk.settle([Settled(delivery, DONE)])
        assert heard() == ("me", b"mail:1\n" + desk.result()[0].encode())
    assert "W" not in desk.record()


def test_a_settle_that_came_to_a_broken_job_may_be_repeated(desk: Desk) -> None:
    deliveries = desk.executing()
    desk.finish(deliveries, Outcome("?"))
    before = desk.everything()
    assert desk.finish(deliveries, DONE) == [2]
    assert desk.everything() == before


def test_a_broken_job_stays_for_as_long_as_its_dlq_entry(desk: Desk) -> None:
    deliveries = desk.executing()
    desk.redis.pexpire(desk.keys.record("1"), MINUTE)
    desk.finish(deliveries, Outcome("?"))
    assert desk.record_ttl() == -1


def test_nothing_is_kept_of_a_broken_job_when_failures_have_no_lifetime(desk: Desk) -> None:
    desk.settle([Settled(desk.executing()[0], Outcome("?"))], Lifetimes(600_000, 0))
    assert desk.record()["s"] == "D"
    assert desk.result() == []


def test_a_broken_job_can_be_buried_although_a_set_is_of_a_wrong_type(desk: Desk) -> None:
    desk.redis.set(desk.keys["retry"], "what?")
    deliveries = desk.executing(*some_jobs(2))
    assert desk.settle([Settled(deliveries[0], RETRY), Settled(deliveries[1], DONE)]) == [1, 1]
    broken(desk, "1")
    assert desk.record("2")["s"] == "S"
    desk.redis.delete(desk.keys["retry"])


def test_an_idempotency_key_of_a_wrong_type_does_not_spoil_an_outcome(desk: Desk) -> None:
    deliveries = desk.executing(a_job(idempotency="app:welcome:42"))
    desk.redis.delete(desk.keys.idempotency("app:welcome:42"))
    desk.redis.rpush(desk.keys.idempotency("app:welcome:42"), "what?")
    desk.finish(deliveries)
    assert desk.record()["s"] == "S"
    desk.redis.delete(desk.keys.idempotency("app:welcome:42"))


@pytest.mark.parametrize("entry", ["no-entry", "", "1-2-3", "99999999999999999999-0"])
def test_a_malformed_token_belongs_to_no_executor_and_the_others_settle(desk: Desk, entry: str) -> None:
    deliveries = desk.executing(*some_jobs(3))
    strange = deliveries[1]._replace(entry=entry)
    assert desk.finish([deliveries[0], strange, deliveries[2]]) == [1, 0, 1]
    assert desk.waiting() == ["2"]


@pytest.mark.parametrize("instead", ["nothing", "a string", "an empty lane"])
def test_what_ran_when_its_lane_vanished_is_settled_like_the_others(desk: Desk, instead: str) -> None:
    deliveries = desk.executing(a_job("1"), a_job("2", priority="low"), a_job("3"))
    desk.redis.delete(desk.keys["s:low"])
    if instead == "a string":
        desk.redis.set(desk.keys["s:low"], "what?")
    elif instead == "an empty lane":
        desk.make_lanes()
    assert desk.finish(deliveries) == [1, 1, 1]
    assert [desk.record(key)["s"] for key in "123"] == ["S", "S", "S"]
    if instead == "a string":
        desk.redis.delete(desk.keys["s:low"])


# A batch that is not all the caller's: the records show which runs are


def test_of_a_batch_the_runs_that_were_taken_away_change_nothing(desk: Desk) -> None:
    deliveries = desk.executing(*some_jobs(4))
    desk.release([deliveries[1]])
    desk.take("berta")
    desk.release([deliveries[2]])
    assert desk.finish(deliveries) == [1, 0, 0, 1]
    assert [desk.record(key)["s"] for key in "1234"] == ["S", "X", "Q", "S"]
    assert desk.stats()["S"] == 2
    assert len(desk.pending()) == 1


def test_a_batch_reports_which_runs_were_settled_before(desk: Desk) -> None:
    deliveries = desk.executing(*some_jobs(3))
    desk.finish(deliveries[:1])
    assert desk.finish(deliveries) == [2, 1, 1]


@pytest.mark.parametrize(("record", "end"), [(None, "S"), ("of a wrong type", "D")])
def test_of_such_a_batch_a_run_without_its_record_ends_as_in_any_other(
    desk: Desk, record: str | None, end: str
) -> None:
    deliveries = desk.executing(*some_jobs(3))
    desk.release([deliveries[0]])
    desk.redis.delete(desk.keys.record("2"))
    if record:
        desk.redis.set(desk.keys.record("2"), record)
    assert desk.finish(deliveries) == [0, 1, 1]
    assert desk.record("2")["s"] == end
    assert not desk.pending()
    assert desk.waiting() == ["1"]
    assert desk.finish(deliveries[1:2]) == [2 if record else 0]


def test_of_such_a_batch_an_entry_whose_job_is_elsewhere_is_dropped(desk: Desk) -> None:
    first, second = desk.executing(*some_jobs(2))
    desk.finish([first])
    strange = desk.stray("s", i="2")
    desk.read()
    assert desk.finish([first, second._replace(entry=strange), second]) == [2, 0, 1]
    assert desk.stats()["dropped"] == 1
    assert not desk.waiting()


def test_nothing_is_settled_while_the_dead_letter_queue_cannot_be_written(desk: Desk) -> None:
    deliveries = desk.executing(a_job("1"), a_job("2"))
    desk.enqueue(a_job("9"))
    desk.redis.set(desk.keys["dlq"], "what?")
    before = desk.everything()
    calls: list[Callable[[], object]] = [
        lambda: desk.finish(deliveries, DEAD),
        desk.take,
        lambda: desk.cancel("9"),
        lambda: desk.do(verbs.queues.purge, LIFETIMES, 100),
    ]
    for call in calls:
        with pytest.raises(ReplyError, match=r"WRONGTYPE .*dlq is a string and should be a stream"):
            call()
    assert desk.everything() == before
    desk.redis.delete(desk.keys["dlq"])
    assert desk.finish(deliveries, DEAD) == [1, 1]


@pytest.mark.parametrize("spoiled", ["the key", "its fields"])
def test_nothing_fails_because_it_cannot_be_counted(desk: Desk, spoiled: str) -> None:
    if spoiled == "the key":
        desk.redis.set(desk.keys["stats"], "what?")
    else:
        fields = ["S", "D", "K", "dropped", "released", "replayed", "vanished", "purged"]
        desk.redis.hset(desk.keys["stats"], mapping=dict.fromkeys(fields, "what?"))
    desk.enqueue(*some_jobs(4))
    desk.stray("s", i="missing")
    first, second, third, fourth = desk.take()
    assert desk.finish([first], DEAD) == [1]
    assert desk.release([second]) == 1
    assert desk.finish([third, fourth]) == [1, 1]
    assert desk.do(verbs.dead.replay, [entry for entry, _ in desk.entries("dlq")]) == [1]
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 2
    desk.redis.delete(desk.keys["stats"])


def test_a_job_whose_record_vanished_leaves_a_tombstone(desk: Desk) -> None:
    deliveries = desk.executing()
    desk.redis.delete(desk.keys.record("1"))
    assert desk.finish(deliveries) == [1]
    assert desk.record()["s"] == "S"
    assert desk.record_ttl() == about(LIFETIMES.record_ms)


def test_an_entry_that_an_operator_deleted_can_still_be_settled(desk: Desk) -> None:
    (delivery,) = desk.executing()
    desk.redis.xdel(desk.keys["s"], delivery.entry)
    assert desk.finish([delivery]) == [1]
    assert desk.record()["s"] == "S"
    assert desk.pending() == {}


# What comes with it


@pytest.mark.parametrize("outcome", [DONE, NOTHING, CANCELLED], ids="SNK")
def test_an_idempotency_key_ends_with_the_record(desk: Desk, outcome: Outcome) -> None:
    desk.finish(desk.executing(a_job(idempotency="app:welcome:42")), outcome)
    assert desk.holder("app:welcome:42") == "1"
    assert desk.ttl(desk.keys.idempotency("app:welcome:42")) == about(LIFETIMES.record_ms)


def test_an_idempotency_key_with_a_window_keeps_its_own_time(desk: Desk) -> None:
    desk.finish(desk.executing(a_job(idempotency="app:welcome:42", window_ms=DAY)))
    assert desk.ttl(desk.keys.idempotency("app:welcome:42")) == about(DAY)


def test_an_idempotency_key_that_another_job_has_by_now_is_left_alone(desk: Desk) -> None:
    deliveries = desk.executing(a_job(idempotency="app:welcome:42"))
    desk.redis.set(desk.keys.idempotency("app:welcome:42"), "another")
    desk.finish(deliveries)
    assert desk.ttl(desk.keys.idempotency("app:welcome:42")) == -1
    desk.redis.delete(desk.keys.idempotency("app:welcome:42"))


@pytest.mark.parametrize("outcome", [DEAD, RETRY, SNOOZE], ids="DRZ")
def test_a_job_that_may_go_on_keeps_its_idempotency_key_for_ever(desk: Desk, outcome: Outcome) -> None:
    desk.finish(desk.executing(a_job(idempotency="app:welcome:42")), outcome)
    assert desk.holder("app:welcome:42") == "1"
    assert desk.ttl(desk.keys.idempotency("app:welcome:42")) == -1


@pytest.mark.parametrize("outcome", [DONE, NOTHING, DEAD, CANCELLED], ids="SNDK")
def test_waiting_clients_receive_the_envelope_once(desk: Desk, outcome: Outcome) -> None:
    (delivery,) = desk.executing()
    with desk.listening("me", "you") as heard:
        desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES)
        desk.do(verbs.jobs.watch, "you", ["1"], LIFETIMES)
        desk.finish([delivery], outcome)
        message = b"mail:1\n" + outcome.value
        assert {heard(), heard()} == {("me", message), ("you", message)}
        assert heard(0.05) is None
    assert "W" not in desk.record()


@pytest.mark.parametrize("outcome", [RETRY, SNOOZE], ids="RZ")
def test_those_who_wait_for_a_job_that_goes_on_go_on_waiting(desk: Desk, outcome: Outcome) -> None:
    (delivery,) = desk.executing()
    desk.do(verbs.jobs.watch, "me", ["1"], LIFETIMES)
    desk.finish([delivery], outcome)
    assert desk.record()["W"] == "me"


def test_who_may_not_publish_settles_all_the_same(desk: Desk, server: Server) -> None:
    words = ["ACL", "SETUSER", "mute", "on", ">word", "~*", "+@all", "resetchannels"]
    desk.broker.ask(Command(words, as_is))
    mute = BlockingBroker(address_of(f"redis://mute:word@127.0.0.1:{server.port}"))
    deliveries = desk.executing(*some_jobs(3))
    desk.do(verbs.jobs.watch, "me", ["1", "2", "3"], LIFETIMES)
    settled = [Settled(*each) for each in zip(deliveries, [DONE, RETRY, SNOOZE], strict=True)]
    assert mute.run(verbs.runs.finish(desk.keys, settled, LIFETIMES)) == [1, 1, 1]
    assert mute.run(verbs.jobs.enqueue(desk.keys, [a_job("4", delay_ms=DAY)])) == [1]
    assert [desk.record(key)["s"] for key in "1234"] == ["S", "R", "L", "L"]
    mute.close()
    desk.broker.ask(Command(["ACL", "DELUSER", "mute"], as_is))


def test_over_maxmemory_every_outcome_is_written(desk: Desk, server: Server) -> None:
    deliveries = desk.executing(*some_jobs(6))
    outcomes = [DONE, NOTHING, DEAD, RETRY, SNOOZE, CANCELLED]
    with server.configured(maxmemory="1"):
        assert desk.settle([*map(Settled, deliveries, outcomes)]) == [1] * 6
    assert [desk.record(str(key))["s"] for key in range(1, 7)] == ["S", "N", "D", "R", "L", "K"]


@pytest.mark.parametrize("hostile", [b'"]] return redis.call("FLUSHALL") --', b"\x00\xff", b"%s%d\n"])
def test_values_are_data_whatever_they_contain(desk: Desk, hostile: bytes) -> None:
    deliveries = desk.executing()
    desk.finish(deliveries, Outcome("S", hostile, ttl_ms=MINUTE))
    assert desk.redis.lrange(desk.keys.result("1"), 0, -1) == [hostile]
