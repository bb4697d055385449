"""Surveying a queue: how many jobs are in each place, and what is next, as the keys themselves have it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fennelq.broker import verbs
from fennelq.broker.key_kinds import TYPES
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verbs.survey import Survey
from fennelq.model.job import JobFailure
from fennelq.model.outcome import Outcome, failure_to_wire
from tests.broker.desk import LIFETIMES, QUEUE, Desk, a_job, some_jobs
from tests.broker.recount import numbers_of, recounted
from tests.kit.clock import ServerClock
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]


def surveyed(desk: Desk) -> Survey:
    """What the script sees. It changes nothing."""
    before = desk.everything()
    survey = desk.do(verbs.survey.survey)
    assert desk.everything() == before
    return survey


def put_off(desk: Desk, kind: str, due: bytes) -> None:
    """Every running job is put off."""
    value = failure_to_wire(JobFailure("ValueError", "no", ""), 0) if kind == "R" else b""
    desk.finish(desk.take(), Outcome(kind, due, value))


def rest(desk: Desk) -> None:
    """It has had no job."""


def wait(desk: Desk) -> None:
    desk.enqueue(*some_jobs(3), a_job("h", priority="high"), a_job("l", priority="low"))


def run(desk: Desk) -> None:
    wait(desk)
    desk.take(free=2)


def all_run(desk: Desk) -> None:
    desk.executing(*some_jobs(3))


def succeed(desk: Desk) -> None:
    desk.finish(desk.executing(*some_jobs(3)))


def wait_behind_runs_that_ended(desk: Desk) -> None:
    desk.enqueue(*some_jobs(5))
    first, *_, last = desk.take(free=4)
    desk.finish([first, last])


def be_scheduled(desk: Desk) -> None:
    desk.enqueue(*(a_job(str(n), at_ms=10**13 + n) for n in (3, 1, 2)))


def be_retried(desk: Desk) -> None:
    desk.enqueue(a_job("later", at_ms=10**13))
    desk.enqueue(*some_jobs(3))
    put_off(desk, "R", b"5000")


def die(desk: Desk) -> None:
    desk.dead(*some_jobs(3))


def die_and_be_replayed(desk: Desk) -> None:
    entries = desk.dead(*some_jobs(3))
    desk.do(verbs.dead.replay, entries[1:])


def wait_in_lines(desk: Desk) -> None:
    desk.enqueue(*(a_job(str(n), gates=f"c1:a/{n % 2}") for n in range(7)))
    desk.take()


def wait_in_quarantine(desk: Desk) -> None:
    (delivery,) = desk.executing()
    desk.redelivered(delivery.key, 2)
    desk.take()
    desk.recover()


def be_cancelled(desk: Desk) -> None:
    wait(desk)
    desk.cancel("1", "h")


def be_purged(desk: Desk) -> None:
    wait(desk)
    desk.do(verbs.queues.purge, LIFETIMES, 100)


def be_in_a_lane_whose_group_is_lost(desk: Desk) -> None:
    run(desk)
    desk.redis.xgroup_destroy(desk.keys["s"], "fq")


def be_in_a_lane_with_another_group(desk: Desk) -> None:
    run(desk)
    for name in ("a", "z"):
        desk.redis.xgroup_create(desk.keys["s"], name, "$")


STATES = [
    rest,
    wait,
    run,
    all_run,
    succeed,
    wait_behind_runs_that_ended,
    be_scheduled,
    be_retried,
    die,
    die_and_be_replayed,
    wait_in_lines,
    wait_in_quarantine,
    be_cancelled,
    be_purged,
    pytest.param(be_in_a_lane_whose_group_is_lost, marks=pytest.mark.audit(skip="its group is lost")),
    pytest.param(be_in_a_lane_with_another_group, marks=pytest.mark.audit(skip="it has other groups")),
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_the_numbers_are_those_of_a_recount(desk: Desk, state: Callable[[Desk], None]) -> None:
    state(desk)
    assert numbers_of(surveyed(desk)) == recounted(desk)


def test_the_moments_are_those_of_the_server(desk: Desk, server_clock: ServerClock) -> None:
    server_clock.stop_at(1_800_000_000_000)
    assert surveyed(desk).now_ms == 1_800_000_000_000


def test_a_pause_is_described(desk: Desk) -> None:
    assert surveyed(desk).paused is None
    pause = desk.pause("consume", why="the mail server is down")
    assert surveyed(desk).paused == pause
    desk.redis.set(desk.keys["paused"], "nonsense")
    assert surveyed(desk).paused is None
    desk.redis.delete(desk.keys["paused"])


def test_the_last_delivered_entry_is_where_peeking_begins(desk: Desk) -> None:
    desk.enqueue(*some_jobs(3))
    assert surveyed(desk).lanes["s"].last == "0-0"
    (delivery,) = desk.take(free=1)
    assert surveyed(desk).lanes["s"].last == delivery.entry


def test_a_counter_that_is_no_number_is_left_out(desk: Desk) -> None:
    desk.redis.hset(desk.keys["stats"], mapping={"S": 3, "D": "many", "parked": "x", "Z": -1})
    assert surveyed(desk).counters == {"S": 3, "Z": -1}


def test_jobs_in_lines_are_none_without_a_line_whatever_the_counter_has(desk: Desk) -> None:
    """A crash of an earlier version may have left it."""
    desk.redis.hset(desk.keys["stats"], "parked", 7)
    assert (surveyed(desk).in_lines, surveyed(desk).lines) == (0, 0)


def test_its_cost_does_not_depend_on_the_number_of_jobs(desk: Desk) -> None:
    """It uses as many commands, none of which walks a key, for one job in each place as for a thousand."""

    def commands(number: int) -> dict[str, int]:
        jobs = [a_job(f"{number}-{n}", priority=("high", "normal", "low")[n % 3]) for n in range(3 * number)]
        desk.dead(*(a_job(f"dead-{number}-{n}") for n in range(number)))
        desk.enqueue(*jobs, *(a_job(f"due-{number}-{n}", at_ms=10**13) for n in range(number)))
        return desk.commands_of(lambda: surveyed_once(desk))

    few = commands(1)
    assert commands(1000) == few
    assert set(few) <= {
        "exists",
        "get",
        "hgetall",
        "hlen",
        "scard",
        "strlen",
        "xinfo|groups",
        "xlen",
        "xrange",
        "xrevrange",
        "zcard",
        "zrange",
    }


def test_what_is_not_there_is_not_read(desk: Desk) -> None:
    assert desk.commands_of(lambda: surveyed_once(desk)) == {
        "exists": 1,
        "hgetall": 1,
        "scard": 1,
        "strlen": 1,
        "xlen": 5,
        "zcard": 2,
    }
    all_run(desk)
    more = desk.commands_of(lambda: surveyed_once(desk))
    assert (more["xinfo|groups"], "xrange" in more) == (1, False)


def test_the_index_of_dead_jobs_is_read_once_and_nothing_else_that_is_not_there(desk: Desk) -> None:
    desk.dead()
    found = desk.commands_of(lambda: surveyed_once(desk))
    assert (found["exists"], found["hlen"], "get" in found) == (1, 3, False)
    desk.pause("enqueue")
    found = desk.commands_of(lambda: surveyed_once(desk))
    assert (found["hlen"], found["get"]) == (8, 1)
    desk.resume()


@pytest.mark.audit(skip="an entry that is not pending was left")
def test_an_entry_that_was_settled_and_not_deleted_hides_no_other_lane(desk: Desk) -> None:
    """A person may have used XACK. The entry counts as one that waits, and no time is known for it."""
    (delivery,) = desk.executing()
    desk.enqueue(a_job("low", priority="low"))
    desk.redis.xack(desk.keys["s"], "fq", delivery.entry)
    lanes = surveyed(desk).lanes
    assert [(lanes[name].waiting, lanes[name].since_ms is None) for name in ("s", "s:low")] == [
        (1, True),
        (1, False),
    ]


def surveyed_once(desk: Desk) -> None:
    desk.do(verbs.survey.survey)


WRONG = {"hash": "set", "set": "string", "stream": "list", "string": "hash", "zset": "stream"}
"""Type → another one."""


def spoil(desk: Desk, name: str) -> None:
    """Make this key of another type."""
    key = desk.keys[name]
    desk.redis.delete(key)
    match WRONG[TYPES[name]]:
        case "set":
            desk.redis.sadd(key, "x")
        case "string":
            desk.redis.set(key, "x")
        case "list":
            desk.redis.rpush(key, "x")
        case "hash":
            desk.redis.hset(key, "x", "x")
        case _:
            desk.redis.xadd(key, {"x": "x"})


@pytest.mark.audit(skip="a key is of a wrong type")
@pytest.mark.parametrize("name", TYPES)
def test_a_key_of_a_wrong_type_is_named(desk: Desk, name: str) -> None:
    run(desk)
    spoil(desk, name)
    (damage,) = [sentence for sentence in desk.broker.send_all(verbs.queues.damage(desk.keys)) if sentence]
    assert surveyed(desk).damage == damage
    assert damage.startswith(f"{desk.keys[name]} is a {WRONG[TYPES[name]]} and should be a {TYPES[name]}")


@pytest.mark.audit(skip="every key is of a wrong type")
def test_every_key_of_a_wrong_type_is_named(desk: Desk) -> None:
    for name in TYPES:
        spoil(desk, name)
    damage = surveyed(desk).damage.split("; ")
    assert sorted(damage) == sorted(desk.broker.send_all(verbs.queues.damage(desk.keys)))


@pytest.mark.audit(skip="a key is of a wrong type")
@pytest.mark.parametrize("name", ["dlq:g", "dlq:f", "dlq:l"])
@pytest.mark.parametrize("paused", [True, False])
def test_a_damaged_index_of_dead_jobs_is_named_once(desk: Desk, name: str, paused: bool) -> None:
    desk.dead(a_job("dead"))
    if paused:
        desk.pause("enqueue")
    spoil(desk, name)
    (damage,) = [sentence for sentence in desk.broker.send_all(verbs.queues.damage(desk.keys)) if sentence]
    assert surveyed(desk).damage == damage
    desk.resume()


def test_a_user_who_may_only_read_can_call_it(desk: Desk, server: Server) -> None:
    run(desk)
    desk.redis.script_flush()
    with desk.as_viewer(server):
        for _ in range(2):  # by its source, and by its digest
            assert numbers_of(desk.do(verbs.survey.survey)) == recounted(desk)


@pytest.mark.parametrize(
    "denied",
    [
        "evalsha_ro",
        "xinfo",
        "xlen",
        "xrange",
        "xrevrange",
        "get",
        "zcard",
        "zrange",
        "scard",
        "hlen",
        "hgetall",
    ],
)
def test_a_user_who_may_not_use_one_of_its_commands_gets_an_error_that_tells_it(
    desk: Desk, server: Server, denied: str
) -> None:
    desk.dead(a_job("dead"))
    desk.enqueue(a_job("due", at_ms=10**13), a_job("waits"))
    desk.pause("enqueue")
    with desk.as_viewer(server, denied), pytest.raises(ReplyError, match="NOPERM") as refused:
        desk.do(verbs.survey.survey)
    assert refused.value.word == "NOPERM"
    desk.resume()


def test_a_user_who_may_not_use_exists_gets_every_number(desk: Desk, server: Server) -> None:
    wait_in_lines(desk)
    with desk.as_viewer(server, "exists"):
        assert numbers_of(desk.do(verbs.survey.survey)) == recounted(desk)


def test_queues_do_not_mix(desk: Desk, server: Server) -> None:
    run(desk)
    with Desk.opened(server, f"{QUEUE}-2") as other:
        assert numbers_of(surveyed(other)) == recounted(other)
