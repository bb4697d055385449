"""The audit is audited: each thing that must not be is found and named, and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from fennelq.broker.keys import executors_key, queues_key
from fennelq.model.outcome import retried
from tests.broker.desk import APP, DONE, FAILURE, Desk, a_job, some_jobs
from tests.kit.audit import audit, problems
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(skip="every test here breaks something")]

DAY = 86_400_000


@pytest.fixture
def desk(server: Server) -> Desk:
    desk = Desk(server)
    desk.open()
    return desk


def a_bit_of_everything(desk: Desk) -> None:
    """Job by job: ended in every way, dead, waiting in every place; the last one is executing."""
    desk.finish(desk.executing(a_job("done", idempotency="app:welcome:a")), DONE)
    desk.dead(a_job("dead", idempotency="app:welcome:b"))
    desk.finish(desk.executing(a_job("retry")), retried(86_400, FAILURE))
    desk.enqueue(a_job("cancelled"))
    desk.cancel("cancelled")
    desk.enqueue(a_job("later", delay_ms=DAY), a_job("high", priority="high"))
    desk.executing(a_job("running"))
    desk.release(desk.block())
    desk.enqueue(a_job("queued", idempotency="app:welcome:c", window_ms=DAY))
    desk.redis.sadd(queues_key(APP), "mail")
    desk.redis.hset(executors_key(APP), "anna", "{}")


def test_a_healthy_queue_has_no_problems(desk: Desk, server: Server) -> None:
    a_bit_of_everything(desk)
    audit(server, unfinished=True)
    audit(desk.redis, APP, unfinished=True)


def test_an_empty_server_has_no_problems(server: Server) -> None:
    server.flush()
    audit(server)


def test_what_an_executor_left_behind_is_named_unless_that_may_be(desk: Desk) -> None:
    desk.executing(a_job("1"))
    assert problems(desk.redis, unfinished=True) == []
    (told,) = problems(desk.redis)
    assert re.search(r"s/\d+-0 \(job 1\) was left in the hands of 'anna'", told)


def entry_of(desk: Desk, key: str) -> str:
    return desk.record(key)["p"].partition("/")[2]


Harm = Callable[[Desk], object]
HARM: dict[str, tuple[Harm, str]] = {
    "a record is gone": (
        lambda desk: desk.redis.delete(desk.keys.record("later")),
        r"the entry sched is of job later, which has no record",
    ),
    "a record is of a wrong type": (
        lambda desk: (
            desk.redis.delete(desk.keys.record("done")),
            desk.redis.set(desk.keys.record("done"), 1),
        ),
        r"j:done is a string and should be a hash",
    ),
    "an entry is gone": (
        lambda desk: desk.redis.zrem(desk.keys["sched"], "later"),
        r"job later \(scheduled, at 'sched'\): no such entry is there: it can never go on",
    ),
    "a queued entry is gone": (
        lambda desk: desk.redis.xdel(desk.keys["s"], entry_of(desk, "queued")),
        r"job queued \(sent, at 's/[\d-]+'\): no such entry is there",
    ),
    "a dead entry is gone": (
        lambda desk: desk.redis.delete(desk.keys["dlq"]),
        r"job dead \(dead, at 'dlq/[\d-]+'\): no such entry is there",
    ),
    "a job is in two lanes": (
        lambda desk: desk.redis.xadd(desk.keys["s:low"], {"i": "queued", "n": 1}),
        r"the entry s:low/[\d-]+ is of job queued, whose record says it is at 's/[\d-]+' \(sent\)",
    ),
    "a job waits and is ready": (
        lambda desk: desk.redis.zadd(desk.keys["retry"], {"queued": 1}),
        r"the entry retry is of job queued, whose record says it is at 's/[\d-]+'",
    ),
    "an entry names no job": (
        lambda desk: desk.redis.xadd(desk.keys["s"], {"what": "this"}),
        r"the entry s/[\d-]+ names no job",
    ),
    "a record says it is elsewhere": (
        lambda desk: desk.redis.hset(desk.keys.record("later"), "p", "retry"),
        r"job later \(scheduled, at 'retry'\): no such entry is there",
    ),
    "status and place disagree": (
        lambda desk: desk.redis.hset(desk.keys.record("later"), "s", "R"),
        r"job later \(waiting for its retry, at 'sched'\): that is no place for a job of this status",
    ),
    "an unknown status": (
        lambda desk: desk.redis.hset(desk.keys.record("later"), "s", "?"),
        r"job later \(\?, at 'sched'\): there is no status '\?'",
    ),
    "executing, but owned by nobody": (
        lambda desk: desk.redis.hset(desk.keys.record("queued"), "s", "X"),
        r"job queued \(executing, at 's/[\d-]+'\): it is executing, and nobody owns its entry",
    ),
    "a live record expires": (
        lambda desk: desk.redis.pexpire(desk.keys.record("queued"), DAY),
        r"job queued .*: it has not ended for good, and its record expires",
    ),
    "a dead record expires": (
        lambda desk: desk.redis.pexpire(desk.keys.record("dead"), DAY),
        r"job dead .*: it has not ended for good, and its record expires",
    ),
    "somebody waits for a job that is not marked": (
        lambda desk: desk.redis.hset(desk.keys.record("later"), "W", "app"),
        r"job later .*: its end concerns others, and its record is not marked",
    ),
    "an ended record does not": (
        lambda desk: desk.redis.persist(desk.keys.record("cancelled")),
        r"job cancelled .*: it has ended, and its record never expires",
    ),
    "an entry of an ended job": (
        lambda desk: (
            desk.redis.xadd(desk.keys["s"], {"i": "done", "n": 1}, id="99999999999999-0")
            and desk.redis.hset(desk.keys.record("done"), "p", "s/99999999999999-0")
        ),
        r"job done \(succeeded, at 's/99999999999999-0'\): it has ended, and an entry is left of it",
    ),
    "pending, but deleted": (
        lambda desk: desk.redis.xdel(desk.keys["s"], entry_of(desk, "running")),
        r"s/[\d-]+ is pending for 'anna', and not in the stream",
    ),
    "delivered, but not pending": (
        lambda desk: desk.redis.xack(desk.keys["s"], "fq", entry_of(desk, "running")),
        r"s/[\d-]+ \(job running\) was delivered and is not pending: nobody will ever get it",
    ),
    "a second group": (
        lambda desk: desk.redis.xgroup_create(desk.keys["s"], "other", "$"),
        r"s has the groups \['fq', 'other'\], not just 'fq'",
    ),
    "two results": (
        lambda desk: desk.redis.rpush(desk.keys.result("done"), "again"),
        r"the result of job done has 2 elements",
    ),
    "a result for ever": (
        lambda desk: desk.redis.persist(desk.keys.result("dead")),
        r"the result of job dead never expires",
    ),
    "a result of a job that goes on": (
        lambda desk: (
            desk.redis.rpush(desk.keys.result("queued"), "1")
            and desk.redis.pexpire(desk.keys.result("queued"), 1000)
        ),
        r"the result of job queued is there although the job has not ended \(sent\)",
    ),
    "a result without a record": (
        lambda desk: desk.redis.delete(desk.keys.record("done")),
        r"the result of job done has outlived its record",
    ),
    "a result that outlives its record": (
        lambda desk: desk.redis.pexpire(desk.keys.result("done"), DAY),
        r"the result of job done outlives its record by \d+ ms",
    ),
    "an idempotency key without a job": (
        lambda desk: desk.redis.set(desk.idem("app:welcome:x"), "nobody"),
        r"the idempotency key 'app:welcome:x' of job nobody never expires, and the job is gone",
    ),
    "an idempotency key of another's": (
        lambda desk: desk.redis.set(desk.idem("app:welcome:x"), "queued"),
        r"the idempotency key 'app:welcome:x' of job queued is not the one its record names",
    ),
    "an idempotency key that outlives its job": (
        lambda desk: desk.redis.persist(desk.idem("app:welcome:a")),
        r"the idempotency key 'app:welcome:a' of job done never expires, but its record does",
    ),
    "an idempotency key that was lost": (
        lambda desk: desk.redis.delete(desk.idem("app:welcome:b")),
        r"job dead .*: its idempotency key 'app:welcome:b' names nothing",
    ),
    "an unknown key": (
        lambda desk: desk.redis.set(f"{desk.keys.prefix}what", "this"),
        r"what: no such key is in KEY_KINDS",
    ),
    "an unknown key of the app": (
        lambda desk: desk.redis.set(f"fq:{{{APP}}}:what", "this"),
        r"what: no such key is in KEY_KINDS",
    ),
    "a permanent key that is not": (
        lambda desk: (
            desk.redis.hset(desk.keys["stats"], "x", 1) and desk.redis.pexpire(desk.keys["stats"], DAY)
        ),
        r"stats is permanent, and expires",
    ),
    "a lane of a wrong type": (
        lambda desk: (desk.redis.delete(desk.keys["iso"]), desk.redis.rpush(desk.keys["iso"], 1)),
        r"iso is a list and should be a stream",
    ),
    "a history of nobody": (
        lambda desk: desk.redis.rpush(desk.keys.history("nobody"), "{}"),
        r"hist:nobody never expires, is not permanent and belongs to no live job",
    ),
}


@pytest.mark.parametrize(("harm", "told"), HARM.values(), ids=HARM.keys())
def test_what_must_not_be_is_named(desk: Desk, harm: Harm, told: str) -> None:
    a_bit_of_everything(desk)
    harm(desk)
    found = problems(desk.redis, unfinished=True)
    assert [one for one in found if re.search(told, one)], found
    with pytest.raises(AssertionError, match="the keys are not as they must be"):
        audit(desk.redis, APP, unfinished=True)
    audit(desk.redis, "another", unfinished=True)


def test_nothing_is_asked_of_a_lost_job(desk: Desk) -> None:
    a_bit_of_everything(desk)
    desk.redis.delete(desk.keys.record("later"))
    desk.redis.xdel(desk.keys["s"], entry_of(desk, "running"))
    audit(desk.redis, unfinished=True, lost=["mail:later", "mail:running"])


def test_of_very_many_problems_the_first_are_told(desk: Desk) -> None:
    desk.enqueue(*some_jobs(100))
    desk.redis.delete(*(desk.keys.record(str(key)) for key in range(1, 101)))
    with pytest.raises(AssertionError, match=r"… and 70 more"):
        audit(desk.redis)
