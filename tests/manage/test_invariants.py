"""Every kind of damage to the keys is found and named, and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import AppKeys, queues_key
from fennelq.manage.invariants.invariants import problems_of
from fennelq.model.outcome import retried
from tests.broker.desk import APP, DONE, FAILURE, READ, Desk, a_job, some_jobs
from tests.kit.audit import audit, picture
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(skip="every test here breaks something")]

DAY = 86_400_000


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    with Desk.opened(server) as desk:
        yield desk


def a_bit_of_everything(desk: Desk) -> None:
    """Job by job: ended in every way, dead, waiting in every place; the last one is executing."""
    desk.finish(desk.executing(a_job("done", idempotency="app:welcome:a")), DONE)
    desk.dead(a_job("dead", idempotency="app:welcome:b"))
    desk.finish(desk.executing(a_job("retry")), retried(86_400, FAILURE))
    desk.enqueue(a_job("cancelled"))
    desk.cancel("cancelled")
    desk.enqueue(a_job("later", delay_ms=DAY), a_job("high", priority="high"))
    desk.executing(a_job("running"))
    desk.executing(a_job("until-done", idempotency="app:welcome:d", dedupe=">"))
    desk.executing(a_job("asked"))
    desk.cancel("asked")
    desk.release(desk.read())
    desk.enqueue(a_job("queued", idempotency="app:welcome:c", window_ms=DAY))
    desk.enqueue(a_job("until-start", idempotency="app:welcome:e", dedupe="<", wait_ms=DAY))
    desk.redis.sadd(queues_key(APP), "mail")
    desk.sleep("anna")
    for lane in READ:
        desk.sleep("berta", lane=lane)
    app = AppKeys(APP)
    desk.broker.run(verbs.executors.present(app, "anna", b'{"host":"web-1"}', 1000))
    desk.broker.run(verbs.executors.died(app, "clara", "killed by SIGKILL", 1000))


def test_a_healthy_queue_has_no_problems(desk: Desk, server: Server) -> None:
    a_bit_of_everything(desk)
    audit(server, unfinished=True)
    audit(desk.redis, APP, unfinished=True)


def test_an_empty_server_has_no_problems(server: Server) -> None:
    server.flush()
    audit(server)


def test_an_entry_that_a_stopped_executor_left_pending_is_a_problem(desk: Desk) -> None:
    desk.executing(a_job("1"))
    assert problems_of(picture(desk.redis)) == []
    (problem,) = problems_of(picture(desk.redis), all_stopped=True)
    assert problem[:3] == ("shop", "mail", "1")
    assert re.fullmatch(
        r"shop/mail: the entry s/\d+-0 \(job 1\) is still pending for 'anna', .*", str(problem)
    )


def entry_of(desk: Desk, key: str) -> str:
    return desk.record(key)["p"].partition("/")[2]


Harm = Callable[[Desk], object]
HARM: dict[str, tuple[Harm, str]] = {
    "a beat does not know that a job was asked to stop": (
        lambda desk: desk.redis.delete(desk.keys["stop"]),
        r"job asked \(EXECUTING, at 's/\d+-\d+'\) was asked to stop, but `stop` does not name it: .*",
    ),
    "the end of a job that was asked to stop would not be noticed": (
        lambda desk: desk.redis.hdel(desk.keys.record("asked"), "z"),
        r"job asked \(EXECUTING, at 's/\d+-\d+'\) has a history, a key, limits, .* but .*",
    ),
    "the jobs that were asked to stop are of a wrong type": (
        lambda desk: desk.redis.delete(desk.keys["stop"]) and desk.redis.set(desk.keys["stop"], "what?"),
        r"stop is a string, but must be a set|job asked .*",
    ),
    "the sleepers are of a wrong type": (
        lambda desk: desk.redis.rename(desk.keys["retry"], desk.keys["idle"]),
        r"idle is a zset, but must be a set",
    ),
    "the sleepers of a lane are of a wrong type": (
        lambda desk: desk.redis.rename(desk.keys["retry"], desk.sleepers_key("s:low")),
        r"idle:s:low is a zset, but must be a set",
    ),
    "the sleepers expire": (
        lambda desk: desk.redis.expire(desk.keys["idle"], 100),
        r"idle is permanent, but expires",
    ),
    "the deaths never expire": (
        lambda desk: desk.redis.persist(AppKeys(APP)["deaths"]),
        r"deaths never expires",
    ),
    "who is alive is of a wrong type": (
        lambda desk: desk.redis.rename(AppKeys(APP)["queues"], AppKeys(APP)["alive"]),
        r"alive is a set, but must be a zset",
    ),
    "what is paused cannot be read": (
        lambda desk: desk.redis.set(desk.keys["paused"], "everything"),
        r"paused is 'everything', which pauses nothing",
    ),
    "a job would wake an executor of a paused queue": (
        lambda desk: desk.redis.set(desk.keys["paused"], "c"),
        r"idle(:s|:s:low|:s:high)? has (anna|berta), although executors start no jobs of this queue",
    ),
    "the pause expires": (
        lambda desk: desk.redis.set(desk.keys["paused"], "e", ex=100),
        r"paused is permanent, but expires",
    ),
    "the executors that met a pause are of a wrong type": (
        lambda desk: desk.redis.set(desk.keys["halted"], "what?"),
        r"halted is a string, but must be a set",
    ),
    "a record is gone": (
        lambda desk: desk.redis.delete(desk.keys.record("later")),
        r"the entry sched is of job later, which has no record",
    ),
    "a record is of a wrong type": (
        lambda desk: (
            desk.redis.delete(desk.keys.record("done")),
            desk.redis.set(desk.keys.record("done"), 1),
        ),
        r"j:done is a string, but must be a hash",
    ),
    "an entry is gone": (
        lambda desk: desk.redis.zrem(desk.keys["sched"], "later"),
        r"job later \(SCHEDULED, at 'sched'\) has no entry there, so it can never go on",
    ),
    "a queued entry is gone": (
        lambda desk: desk.redis.xdel(desk.keys["s"], entry_of(desk, "queued")),
        r"job queued \(SENT, at 's/[\d-]+'\) has no entry there",
    ),
    "a dead entry is gone": (
        lambda desk: desk.redis.delete(desk.keys["dlq"]),
        r"job dead \(DEAD, at 'dlq/[\d-]+'\) has no entry there",
    ),
    "a job is in two lanes": (
        lambda desk: desk.redis.xadd(desk.keys["s:low"], {"i": "queued", "n": 1}),
        r"the entry s:low/[\d-]+ is of job queued, whose record names the place 's/[\d-]+' \(SENT\)",
    ),
    "a job is in a lane and waits for a retry": (
        lambda desk: desk.redis.zadd(desk.keys["retry"], {"queued": 1}),
        r"the entry retry is of job queued, whose record names the place 's/[\d-]+'",
    ),
    "an entry names no job": (
        lambda desk: desk.redis.xadd(desk.keys["s"], {"what": "this"}),
        r"the entry s/[\d-]+ names no job",
    ),
    "a record names another place": (
        lambda desk: desk.redis.hset(desk.keys.record("later"), "p", "retry"),
        r"job later \(SCHEDULED, at 'retry'\) has no entry there",
    ),
    "status and place disagree": (
        lambda desk: desk.redis.hset(desk.keys.record("later"), "s", "R"),
        r"job later \(RETRY, at 'sched'\) cannot have this status at this place",
    ),
    "an unknown status": (
        lambda desk: desk.redis.hset(desk.keys.record("later"), "s", "?"),
        r"job later \('\?', at 'sched'\) has a status that does not exist",
    ),
    "executing, but not pending": (
        lambda desk: desk.redis.hset(desk.keys.record("queued"), "s", "X"),
        r"job queued \(EXECUTING, at 's/[\d-]+'\) is executing, but its entry is pending for no consumer",
    ),
    "a live record expires": (
        lambda desk: desk.redis.pexpire(desk.keys.record("queued"), DAY),
        r"job queued .* can still run, but its record expires",
    ),
    "a dead record expires": (
        lambda desk: desk.redis.pexpire(desk.keys.record("dead"), DAY),
        r"job dead .* can still run, but its record expires",
    ),
    "a client waits for a job that is not marked": (
        lambda desk: desk.redis.hset(desk.keys.record("later"), "W", "app"),
        r"job later .* has a history, .* but its record is not marked",
    ),
    "the record of an ended job does not expire": (
        lambda desk: desk.redis.persist(desk.keys.record("cancelled")),
        r"job cancelled .* has ended, but its record never expires",
    ),
    "an entry of an ended job": (
        lambda desk: (
            desk.redis.xadd(desk.keys["s"], {"i": "done", "n": 1}, id="99999999999999-0")
            and desk.redis.hset(desk.keys.record("done"), "p", "s/99999999999999-0")
        ),
        r"job done \(SUCCESS, at 's/99999999999999-0'\) has ended, but its entry is still there",
    ),
    "pending, but deleted": (
        lambda desk: desk.redis.xdel(desk.keys["s"], entry_of(desk, "running")),
        r"s/[\d-]+ is pending for 'anna', but not in the stream",
    ),
    "delivered, but not pending": (
        lambda desk: desk.redis.xack(desk.keys["s"], "fq", entry_of(desk, "running")),
        r"s/[\d-]+ \(job running\) was delivered, but is not pending: no executor will ever get it",
    ),
    "a second group": (
        lambda desk: desk.redis.xgroup_create(desk.keys["s"], "other", "$"),
        r"s has the groups \['fq', 'other'\], not only 'fq'",
    ),
    "two results": (
        lambda desk: desk.redis.rpush(desk.keys.result("done"), "again"),
        r"the result of job done has 2 elements",
    ),
    "a result that never expires": (
        lambda desk: desk.redis.persist(desk.keys.result("dead")),
        r"the result of job dead never expires",
    ),
    "a result of a job that has not ended": (
        lambda desk: (
            desk.redis.rpush(desk.keys.result("queued"), "1")
            and desk.redis.pexpire(desk.keys.result("queued"), 1000)
        ),
        r"the result of job queued exists, although the job has not ended \(SENT\)",
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
        lambda desk: desk.redis.set(desk.keys.idempotency("app:welcome:x"), "missing"),
        r"the idempotency key 'app:welcome:x' of job missing never expires, but the job is gone",
    ),
    "an idempotency key of another job": (
        lambda desk: desk.redis.set(desk.keys.idempotency("app:welcome:x"), "queued"),
        r"the idempotency key 'app:welcome:x' of job queued is not the one that its record names",
    ),
    "an idempotency key that outlives its job": (
        lambda desk: desk.redis.persist(desk.keys.idempotency("app:welcome:a")),
        r"the idempotency key 'app:welcome:a' of job done never expires, but the job's record does",
    ),
    "an idempotency key that was lost": (
        lambda desk: desk.redis.delete(desk.keys.idempotency("app:welcome:b")),
        r"job dead .* has the idempotency key 'app:welcome:b', but that names no job",
    ),
    "a key that a job holds until it has ended and that names another": (
        lambda desk: desk.redis.set(desk.keys.idempotency("app:welcome:d"), "until-start"),
        r"job until-done .* has the idempotency key 'app:welcome:d', but that names job until-start",
    ),
    "a key that a job holds until it begins and that was lost": (
        lambda desk: desk.redis.delete(desk.keys.idempotency("app:welcome:e")),
        r"job until-start .* has the idempotency key 'app:welcome:e', but that names no job",
    ),
    "an unknown key": (
        lambda desk: desk.redis.set(f"{desk.keys.prefix}what", "this"),
        r"what is not a key of fennelq",
    ),
    "an unknown key of the app": (
        lambda desk: desk.redis.set(f"fq:{{{APP}}}:what", "this"),
        r"what is not a key of fennelq",
    ),
    "a permanent key that is not": (
        lambda desk: (
            desk.redis.hset(desk.keys["stats"], "x", 1) and desk.redis.pexpire(desk.keys["stats"], DAY)
        ),
        r"stats is permanent, but expires",
    ),
    "a lane of a wrong type": (
        lambda desk: (desk.redis.delete(desk.keys["iso"]), desk.redis.rpush(desk.keys["iso"], 1)),
        r"iso is a list, but must be a stream",
    ),
    "a history without a job": (
        lambda desk: desk.redis.rpush(desk.keys.history("missing"), "{}"),
        r"hist:missing never expires, but it is not permanent",
    ),
}


@pytest.mark.parametrize(("harm", "text"), HARM.values(), ids=HARM.keys())
def test_every_kind_of_damage_is_named(desk: Desk, harm: Harm, text: str) -> None:
    a_bit_of_everything(desk)
    harm(desk)
    found = problems_of(picture(desk.redis))
    assert [problem for problem in found if re.search(text, problem.text)], found
    with pytest.raises(AssertionError, match="the keys are not as they must be"):
        audit(desk.redis, APP, unfinished=True)
    audit(desk.redis, "another", unfinished=True)


def test_the_audit_leaves_out_lost_jobs(desk: Desk) -> None:
    a_bit_of_everything(desk)
    desk.redis.delete(desk.keys.record("later"))
    desk.redis.xdel(desk.keys["s"], entry_of(desk, "running"))
    audit(desk.redis, unfinished=True, lost=["mail:later", "mail:running"])


def test_the_audit_shows_the_first_of_very_many_problems(desk: Desk) -> None:
    desk.enqueue(*some_jobs(100))
    desk.redis.delete(*(desk.keys.record(str(key)) for key in range(1, 101)))
    with pytest.raises(AssertionError, match=r"… and 70 more"):
        audit(desk.redis)
