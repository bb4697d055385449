"""double: gives a job whose run takes too long a second copy: two executors run it, and one of them ends it."""

from __future__ import annotations

from itertools import permutations
from threading import Barrier, Thread
from typing import Any

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import LANES, QUARANTINE
from fennelq.broker.verbs.runs import Report, Settled
from fennelq.model.job import Delivery, Status
from fennelq.model.outcome import (
    Outcome,
    cancelled,
    died,
    not_known,
    rate_limited,
    retried,
    snoozed,
    succeeded,
)
from tests.broker.desk import (
    DONE,
    FAILURE,
    LEASE_MS,
    LIFETIMES,
    READ,
    RESULT_MS,
    Desk,
    a_job,
    about,
    some_jobs,
)
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

FIRST, SECOND = succeeded(b'"first"', RESULT_MS), succeeded(b'"second"', RESULT_MS)
OF_FIRST, OF_SECOND, OF_DONE = (outcome.value.decode() for outcome in (FIRST, SECOND, DONE))
UNSUCCESSFUL = {
    "R": retried(0, FAILURE),
    "D": died(FAILURE, 1, LIFETIMES.failure_ms),
    "Z": snoozed(1000),
    "G": rate_limited(1000),
    "U": not_known(FAILURE, 0, LIFETIMES.failure_ms),
}
LINES = {"R": "failed", "D": "failed", "Z": "snoozed", "G": "rate_limited", "U": "unknown_task"}
whichever = pytest.mark.parametrize("winner", [0, 1], ids=["first", "twin"])
unsuccessful = pytest.mark.parametrize("kind", UNSUCCESSFUL)


def double(desk: Desk, *runs: Delivery, executor: str = "anna") -> list[int]:
    return desk.do(verbs.runs.double, executor, [(run.lane, run.entry) for run in runs])


def both(desk: Desk, **given: Any) -> tuple[Delivery, Delivery]:
    """Job 1, which anna and berta run."""
    (first,) = desk.executing(a_job(**given))
    assert double(desk, first) == [1]
    (twin,) = desk.take("berta")
    assert twin.key == "1"
    return first, twin


def waits(desk: Desk, **given: Any) -> Delivery:
    """Job 1, which anna runs; its second copy waits."""
    (first,) = desk.executing(a_job(**given))
    assert double(desk, first) == [1]
    return first


def place(run: Delivery) -> str:
    return f"{run.lane}/{run.entry}"


def told(desk: Desk, key: str = "1") -> list[tuple[str, str]]:
    return [(line["what"], line["owner"]) for line in desk.history(key)]


def assert_ended_once(desk: Desk, result: str, kind: str = "S") -> None:
    """One outcome, one result, one count, and no entry left."""
    assert (desk.record()["s"], desk.result()) == (kind, [result])
    assert sum(desk.stats().get(letter, 0) for letter in "SNDKRZGU") == 1
    assert desk.everywhere() == (["1"] if kind == "D" else [])
    assert desk.pending() == {}
    assert "S" not in desk.record()
    assert desk.keys_of_limits() == []


# Making the second copy


@pytest.mark.parametrize("priority", LANES)
def test_the_second_copy_is_another_entry_of_the_same_lane_with_the_same_delivery_number(
    desk: Desk, priority: str
) -> None:
    desk.enqueue(a_job(priority=priority))
    desk.redelivered("1", 2, LANES[priority])
    (first,) = desk.take()
    assert double(desk, first) == [1]
    (_, (entry, fields)) = desk.entries(LANES[priority])
    assert fields == {"i": "1", "n": "2"}
    record = desk.record()
    assert (record["p"], record["S"], record["s"]) == (place(first), f"{LANES[priority]}/{entry}", "X")
    assert told(desk) == [("doubled", "anna")]
    (twin,) = desk.take("berta")
    assert (twin.key, twin.lane, twin.entry, twin.deliveries) == ("1", LANES[priority], entry, 2)
    assert (twin.args, twin.task, twin.fence) == (first.args, first.task, first.fence + 1)
    assert desk.record()["p"] == place(first)


def test_a_job_is_doubled_once(desk: Desk) -> None:
    first, twin = both(desk)
    assert double(desk, first) == [0]
    assert double(desk, twin, executor="berta") == [0]
    desk.release([twin])
    assert double(desk, first) == [0]
    assert desk.waiting() == ["1"]
    assert desk.stats() == {"doubled": 1, "released": 1}
    desk.release([first])
    assert double(desk, *desk.take("clara"), executor="clara") == [0]


def test_a_job_that_is_tried_again_may_be_doubled_again(desk: Desk) -> None:
    first, twin = both(desk)
    desk.release([twin])
    assert desk.finish([first], UNSUCCESSFUL["R"]) == [1]
    assert "S" not in desk.record()
    desk.do(verbs.queues.promote, 10)
    assert double(desk, *desk.take()) == [1]


def test_a_batch_doubles_those_that_it_can(desk: Desk) -> None:
    runs = desk.executing(*some_jobs(3))
    desk.finish(runs[1:2])
    assert double(desk, *runs) == [1, 0, 1]
    assert [one.key for one in desk.take("berta")] == ["1", "3"]


def test_a_run_that_another_executor_has_taken_over_is_not_doubled(desk: Desk) -> None:
    (first,) = desk.executing()
    desk.recover()
    before = desk.everything()
    assert double(desk, first) == [0]
    assert desk.everything() == before


def test_a_job_that_waits_is_not_doubled(desk: Desk) -> None:
    desk.enqueue(a_job())
    ((entry, _),) = desk.entries("s")
    before = desk.everything()
    assert desk.do(verbs.runs.double, "anna", [("s", entry)]) == [0]
    assert desk.everything() == before


def test_an_entry_that_is_not_the_place_of_its_job_is_not_doubled(desk: Desk) -> None:
    (first,) = desk.executing()
    entry = desk.stray("s", i="1")
    before = desk.everything()
    assert desk.do(verbs.runs.double, "anna", [("s", entry)]) == [0]
    assert desk.everything() == before
    desk.redis.xdel(desk.keys["s"], entry)
    assert double(desk, first) == [1]


def test_a_job_that_was_asked_to_stop_is_not_doubled(desk: Desk) -> None:
    (first,) = desk.executing()
    desk.cancel("1")
    assert double(desk, first) == [0]


def test_a_job_in_quarantine_is_not_doubled(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redelivered("1", 3, QUARANTINE)
    (first,) = desk.fetch("isolde", lanes=[QUARANTINE]).deliveries
    assert double(desk, first, executor="isolde") == [0]


def test_no_job_is_doubled_while_executors_start_none(desk: Desk) -> None:
    (first,) = desk.executing()
    desk.pause("consume")
    assert double(desk, first) == [0]
    desk.resume()
    desk.pause("enqueue")
    assert double(desk, first) == [1]


def test_a_lane_that_cannot_be_read_is_not_doubled_and_does_not_stop_the_others(desk: Desk) -> None:
    high, normal = desk.executing(a_job("1", priority="high"), a_job("2"))
    desk.redis.rename(desk.keys["s:high"], "kept")
    desk.redis.set(desk.keys["s:high"], "damaged")
    assert double(desk, high, normal) == [0, 1]
    desk.redis.rename("kept", desk.keys["s:high"])


def test_the_message_about_a_second_copy_goes_to_another_executor_than_the_one_that_runs_the_job(
    desk: Desk,
) -> None:
    (first,) = desk.executing()
    with desk.subscribed("anna", "berta") as heard:
        assert desk.fetch("anna", sleeps=True).drained
        desk.sleep("berta")
        assert double(desk, first) == [1]
        assert heard() == [("berta", "look s")]
        assert desk.sleepers() == {"anna"}


@pytest.mark.parametrize("lanes", [READ, ("s",)], ids=["all", "some"])
def test_an_executor_that_doubles_its_job_sleeps_on_and_is_woken_by_other_jobs(
    desk: Desk, lanes: tuple[str, ...]
) -> None:
    (first,) = desk.executing()
    with desk.subscribed("anna") as heard:
        assert desk.fetch("anna", lanes=lanes, sleeps=True).drained
        assert double(desk, first) == [1]
        assert heard() == []
        desk.enqueue(a_job("2"))
        assert heard() == [("anna", "look s")]


# Starting it


def test_the_executor_that_runs_the_job_does_not_start_its_second_copy(desk: Desk) -> None:
    first = waits(desk)
    assert desk.take("anna") == []
    assert desk.waiting() == ["1"]
    assert "S" not in desk.record()
    assert desk.stats() == {"doubled": 1, "dropped": 1}
    assert desk.finish([first]) == [1]
    assert_ended_once(desk, OF_DONE)


def test_a_job_whose_second_copy_never_began_may_be_doubled_again(desk: Desk) -> None:
    first = waits(desk)
    desk.take("anna")
    assert double(desk, first) == [1]
    (twin,) = desk.take("berta")
    assert desk.finish([twin], FIRST) == [1]
    assert_ended_once(desk, OF_FIRST)


def test_a_second_copy_does_not_start_when_the_job_was_asked_to_stop(desk: Desk) -> None:
    first = waits(desk)
    assert desk.cancel("1", why="enough") == [2]
    assert (desk.waiting(), "S" in desk.record()) == (["1"], False)
    assert desk.take("berta") == []
    assert desk.finish([first], cancelled("enough", RESULT_MS)) == [1]
    assert_ended_once(desk, '{"cancelled":"enough"}', "K")


def test_a_second_copy_does_not_start_when_an_earlier_fennelq_has_noted_the_request_to_stop(
    desk: Desk,
) -> None:
    """It does not know of second copies, and leaves them alone."""
    waits(desk)
    desk.redis.hset(desk.keys.record("1"), "C", "enough")
    assert desk.take("berta") == []
    assert desk.waiting() == ["1"]
    desk.redis.hdel(desk.keys.record("1"), "C")


def test_a_second_copy_does_not_start_when_an_earlier_fennelq_has_recovered_the_job(desk: Desk) -> None:
    waits(desk)
    desk.redelivered("1", 2)
    ((_, (entry, _)),) = [desk.entries("s")]
    (again,) = desk.take("berta")
    assert (again.entry, again.deliveries) == (entry, 2)
    assert desk.waiting() == ["1"]
    assert desk.finish([again], FIRST) == [1]
    assert_ended_once(desk, OF_FIRST)


def test_an_entry_that_is_neither_copy_does_not_start(desk: Desk) -> None:
    first, twin = both(desk)
    desk.stray("s", i="1")
    before = desk.record()
    assert desk.take("clara") == []
    assert (desk.record(), desk.waiting()) == (before, ["1", "1"])
    assert desk.finish([twin], FIRST) == [1]
    assert desk.finish([first], SECOND) == [0]
    assert_ended_once(desk, OF_FIRST)


def test_both_runs_have_numbers_that_grow_and_a_run_after_them_as_well(desk: Desk) -> None:
    first, twin = both(desk)
    assert (first.fence, twin.fence) == (1, 2)
    desk.release([twin])
    desk.release([first])
    (third,) = desk.take("clara")
    assert third.fence == 3
    info = desk.do(verbs.jobs.record, "1")
    assert info is not None
    assert info.deliveries == 3


def test_a_doubled_job_is_executing_and_belongs_to_its_first_executor(desk: Desk) -> None:
    both(desk)
    info = desk.do(verbs.jobs.record, "1")
    assert info is not None
    assert (info.status, info.owner) == (Status.EXECUTING, "anna")


# Who ends it


@whichever
def test_the_first_success_ends_the_job_and_the_other_one_changes_nothing(desk: Desk, winner: int) -> None:
    runs = both(desk)
    first, second = runs[winner], runs[1 - winner]
    assert desk.finish([first], FIRST) == [1]
    ended = desk.everything()
    assert desk.finish([second], SECOND) == [0]
    assert desk.everything() == ended
    assert_ended_once(desk, OF_FIRST)


@whichever
@pytest.mark.parametrize("kind", [*UNSUCCESSFUL, "K"])
def test_an_executor_that_loses_changes_nothing_whatever_its_outcome_is(
    desk: Desk, winner: int, kind: str
) -> None:
    runs = both(desk)
    assert desk.finish([runs[winner]], FIRST) == [1]
    ended = desk.everything()
    late = UNSUCCESSFUL.get(kind) or cancelled("late", RESULT_MS)
    assert desk.finish([runs[1 - winner]], late) == [0]
    assert desk.release([runs[1 - winner]]) == 0
    assert desk.everything() == ended


@whichever
def test_a_settle_that_is_repeated_because_its_reply_was_lost_is_known_and_the_loser_stays_the_loser(
    desk: Desk, winner: int
) -> None:
    runs = both(desk)
    for _ in range(3):
        desk.finish([runs[winner]], FIRST)
        assert desk.finish([runs[winner]], FIRST) == [2]
        assert desk.finish([runs[1 - winner]], SECOND) == [0]
    assert_ended_once(desk, OF_FIRST)


@whichever
def test_both_runs_in_one_batch_end_the_job_once(desk: Desk, winner: int) -> None:
    runs = both(desk)
    batch = [Settled(runs[winner], FIRST), Settled(runs[1 - winner], SECOND)]
    assert desk.settle(batch) == [1, 0]
    assert_ended_once(desk, OF_FIRST)


@whichever
def test_both_runs_of_several_jobs_in_one_batch_end_each_job_once(desk: Desk, winner: int) -> None:
    firsts = desk.executing(*some_jobs(2))
    assert double(desk, *firsts) == [1, 1]
    runs = (firsts, desk.take("berta"))
    batch = [Settled(run, FIRST) for run in runs[winner]] + [Settled(run, SECOND) for run in runs[1 - winner]]
    assert desk.settle(batch) == [1, 1, 0, 0]
    assert [desk.result(key) for key in "12"] == [[OF_FIRST], [OF_FIRST]]


def test_after_both_runs_of_a_job_the_further_runs_of_a_batch_end(desk: Desk) -> None:
    first, twin = both(desk)
    desk.enqueue(a_job("9"))
    (ninth,) = desk.take("clara")
    batch = [Settled(first, FIRST), Settled(twin, SECOND), Settled(ninth, SECOND)]
    assert desk.settle(batch) == [1, 0, 1]
    assert (desk.result("1"), desk.result("9")) == ([OF_FIRST], [OF_SECOND])


@whichever
@pytest.mark.parametrize("other", ["1", "2"])
def test_the_loser_of_a_batch_does_not_spoil_the_other_outcomes(desk: Desk, winner: int, other: str) -> None:
    """XACK counts too few entries for the batch of the loser, so each record decides."""
    runs = both(desk)
    desk.enqueue(a_job("9"))
    (ninth,) = desk.take("clara")
    assert desk.finish([runs[winner]], FIRST) == [1]
    batch = [runs[1 - winner], ninth] if other == "1" else [ninth, runs[1 - winner]]
    assert sorted(desk.finish(batch, SECOND)) == [0, 1]
    assert desk.result("9") == [OF_SECOND]
    assert desk.result("1") == [OF_FIRST]


def test_a_twin_wins_in_a_batch_in_which_another_run_was_lost(desk: Desk) -> None:
    _, twin = both(desk)
    desk.enqueue(a_job("9"))
    (ninth,) = desk.take("berta")
    desk.silence(ninth)
    desk.recover(silent=False)
    assert desk.finish([ninth, twin], FIRST) == [0, 1]
    assert desk.result() == [OF_FIRST]
    assert desk.finish([twin], FIRST) == [2]


@whichever
def test_the_history_has_both_runs_and_the_record_shows_the_one_that_ended_the_job(
    desk: Desk, winner: int
) -> None:
    runs = both(desk)
    began = [int(desk.record()[field].split(" ")[at]) for field, at in (("w", 1), ("S", 2))]
    desk.finish([runs[winner]], FIRST)
    owners = ("anna", "berta")
    assert told(desk) == [("doubled", "anna"), ("outrun", owners[1 - winner])]
    assert desk.history()[1]["begun"] == began[1 - winner]
    assert desk.record()["w"].split(" ")[0] == owners[winner]
    assert desk.record()["p"] == place(runs[winner])
    assert desk.record()["w"].split(" ")[2] == "2"
    assert desk.ttl(desk.keys.history("1")) == about(LIFETIMES.record_ms)
    assert desk.stats().get("twin_first", 0) == winner


@pytest.mark.audit(skip="a record was changed by hand")
@pytest.mark.parametrize("field", ["p", "w"])
def test_a_second_copy_ends_a_job_whose_record_has_lost_what_it_says_of_the_first(
    desk: Desk, field: str
) -> None:
    _, twin = both(desk)
    desk.redis.hdel(desk.keys.record("1"), field)
    assert desk.finish([twin], FIRST) == [1]
    assert ("S" in desk.record(), desk.result(), desk.stats().get("leaving_failed")) == (
        False,
        [OF_FIRST],
        None,
    )
    assert desk.waiting() == (["1"] if field == "p" else [])


@whichever
def test_the_executor_that_loses_is_told_to_stop(desk: Desk, winner: int) -> None:
    runs = both(desk)
    owners, loser = ("anna", "berta"), runs[1 - winner]
    with desk.subscribed("anna", "berta") as heard:
        desk.finish([runs[winner]])
        assert heard() == [(owners[1 - winner], f"outrun {loser.lane} {loser.entry}")]
    beat = desk.do(verbs.executors.beat, owners[1 - winner], 0, [(loser.lane, loser.entry)])
    assert (beat.lost, beat.stranded) == ([(loser.lane, loser.entry)], [])


def test_a_second_copy_that_only_waits_goes_when_the_job_ends(desk: Desk) -> None:
    first = waits(desk)
    assert desk.finish([first]) == [1]
    assert_ended_once(desk, OF_DONE)
    assert desk.take("berta") == []
    assert "dropped" not in desk.stats()


def test_those_who_wait_learn_of_one_end(desk: Desk) -> None:
    first, twin = both(desk)
    with desk.listening("ears") as heard:
        desk.do(verbs.jobs.watch, "ears", ["1"], LIFETIMES)
        desk.finish([twin], FIRST)
        desk.finish([first], SECOND)
        assert heard() == ("ears", f"mail:1\n{OF_FIRST}".encode())
        assert heard(within=0) is None


@whichever
def test_a_result_that_cannot_be_written_makes_the_job_dead_once(desk: Desk, winner: int) -> None:
    runs = both(desk)
    desk.redis.set(desk.keys.result("1"), "a string")
    assert desk.finish([runs[winner]], FIRST) == [1]
    assert desk.finish([runs[1 - winner]], SECOND) == [0]
    record = desk.record()
    assert (record["s"], record["y"], record["T"]) == ("D", "broken", place(runs[winner]))
    assert desk.everywhere() == ["1"]
    assert desk.pending() == {}
    assert "S" not in record


def test_executors_that_settle_both_copies_at_the_same_time_end_each_job_once(
    desk: Desk, server: Server
) -> None:
    """L14. Two connections, without an order between their calls."""
    firsts = desk.executing(*some_jobs(60))
    assert double(desk, *firsts) == [1] * 60
    twins = desk.take("berta")
    answers: dict[str, list[int]] = {}
    begin = Barrier(2)

    def settle(name: str, runs: list[Delivery], outcome: Outcome) -> None:
        with Desk.opened(server) as own:
            begin.wait()
            answers[name] = [own.finish([run], outcome)[0] for run in runs]

    threads = [
        Thread(target=settle, args=("anna", firsts, FIRST)),
        Thread(target=settle, args=("berta", twins[::-1], SECOND)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    of_twins = dict(zip([twin.key for twin in twins[::-1]], answers["berta"], strict=True))
    for run, answer in zip(firsts, answers["anna"], strict=True):
        assert {answer, of_twins[run.key]} == {0, 1}
        assert desk.result(run.key) == [OF_FIRST if answer == 1 else OF_SECOND]
    assert desk.stats()["S"] == 60
    assert desk.everywhere() == []
    assert desk.pending() == {}


# A copy that does not succeed


@unsuccessful
@whichever
def test_a_copy_that_does_not_succeed_is_dropped_while_the_other_one_runs(
    desk: Desk, winner: int, kind: str
) -> None:
    runs = both(desk)
    left, other = runs[1 - winner], runs[winner]
    assert desk.finish([left], UNSUCCESSFUL[kind]) == [1]
    record = desk.record()
    assert (record["s"], record["p"], record["S"]) == ("X", place(other), "-")
    assert record.get("n") is None
    assert desk.waiting() == ["1"]
    assert told(desk)[1:] == [(LINES[kind], ("anna", "berta")[1 - winner])]
    assert desk.history()[1].get("more") == ("ValueError" if kind in "RDU" else None)
    # Its reply was lost.
    assert desk.finish([left], UNSUCCESSFUL[kind]) == [2]
    assert desk.finish([other], FIRST) == [1]
    assert_ended_once(desk, OF_FIRST)


@whichever
def test_a_copy_that_another_service_refuses_stops_the_rates_of_the_job(desk: Desk, winner: int) -> None:
    """No slot is given back, and the job does not go to its line: the other copy runs."""
    runs = both(desk, gates="c1:account r0/1:host")
    assert desk.finish([runs[1 - winner]], rate_limited(60)) == [1]
    assert 50_000 < desk.redis.pttl(desk.keys.rate("r:host")) <= 60_200
    assert desk.record()["p"] == place(runs[winner])
    assert desk.redis.zrange(desk.keys.slots("c:account"), 0, -1, withscores=True) == [(b"1", 0.0)]
    desk.enqueue(a_job("2", gates="r0/1:host"))
    assert desk.record("2")["p"] == "line"
    assert desk.finish([runs[winner]], FIRST) == [1]
    assert desk.result() == [OF_FIRST]


@pytest.mark.parametrize("kind", sorted(UNSUCCESSFUL.keys() - {"G"}))
def test_a_copy_that_ends_for_another_reason_leaves_the_rates_of_the_job_alone(desk: Desk, kind: str) -> None:
    """Of a retry and a snooze, the number is a time too."""
    first, _ = both(desk, gates="r0/1:host")
    assert desk.finish([first], retried(60_000, FAILURE) if kind == "R" else UNSUCCESSFUL[kind]) == [1]
    assert not desk.redis.exists(desk.keys.rate("r:host"))


@whichever
def test_when_the_rates_cannot_be_stopped_the_copy_is_dropped_all_the_same(desk: Desk, winner: int) -> None:
    runs = both(desk, gates="r0/1:host")
    desk.redis.rpush(desk.keys.rate("r:host"), "damaged")
    assert desk.finish([runs[1 - winner]], rate_limited(60)) == [1]
    assert desk.record()["p"] == place(runs[winner])
    desk.redis.delete(desk.keys.rate("r:host"))
    assert desk.finish([runs[winner]], FIRST) == [1]
    assert desk.result() == [OF_FIRST]


@unsuccessful
@whichever
def test_when_both_copies_do_not_succeed_the_second_one_decides(desk: Desk, winner: int, kind: str) -> None:
    runs = both(desk)
    assert desk.finish([runs[winner]], UNSUCCESSFUL["D"]) == [1]
    assert desk.finish([runs[1 - winner]], UNSUCCESSFUL[kind]) == [1]
    record, stats = desk.record(), desk.stats()
    assert record["s"] == {"R": "R", "D": "D", "Z": "L", "G": "L", "U": "L"}[kind]
    assert sum(stats.get(letter, 0) for letter in "SNDKRZGU") == 1
    assert "S" not in record
    assert desk.everywhere() == ["1"]
    assert record.get("n") == {"R": "1", "D": "1"}.get(kind)


@unsuccessful
def test_a_second_copy_that_only_waits_goes_when_the_job_does_not_succeed(desk: Desk, kind: str) -> None:
    first = waits(desk)
    assert desk.finish([first], UNSUCCESSFUL[kind]) == [1]
    assert desk.everywhere() == ["1"]
    assert desk.waiting() == []
    assert "S" not in desk.record()


@pytest.mark.parametrize("failure", [b"no json", b"5"])
def test_a_failure_that_cannot_be_read_is_dropped_all_the_same(desk: Desk, failure: bytes) -> None:
    first, twin = both(desk)
    assert desk.finish([first], Outcome("R", b"0", failure)) == [1]
    assert desk.record()["p"] == place(twin)
    assert desk.finish([twin]) == [1]


# Deaths


@whichever
def test_a_copy_whose_executor_died_is_dropped_and_the_other_one_ends_the_job(
    desk: Desk, winner: int
) -> None:
    """L14. It costs no delivery, and leaves no entry."""
    runs = both(desk)
    left, other = runs[1 - winner], runs[winner]
    desk.silence(left)
    died = {"anna": "killed by SIGKILL", "berta": "killed by SIGKILL"}
    sweep = desk.recover(silent=False, deaths=died)
    assert (sweep.requeued, sweep.dead, sweep.vanished) == (0, 0, 0)
    assert (desk.record()["p"], desk.record()["S"]) == (place(other), "-")
    assert desk.waiting() == ["1"]
    (_, line) = desk.history()
    owner = ("anna", "berta")[1 - winner]
    assert (line["what"], line["owner"], line["more"]) == ("recovered", owner, "killed by SIGKILL")
    # It was only paused, and comes back.
    assert desk.finish([left], SECOND) == [0]
    assert desk.finish([other], FIRST) == [1]
    assert_ended_once(desk, OF_FIRST)


@whichever
def test_a_silent_executor_is_not_woken_any_more(desk: Desk, winner: int) -> None:
    runs = both(desk)
    desk.sleep("anna", "berta")
    desk.silence(runs[1 - winner])
    desk.recover(silent=False)
    assert desk.sleepers() == {("anna", "berta")[winner]}


def test_when_both_executors_died_the_job_is_recovered_once(desk: Desk) -> None:
    first, twin = both(desk)
    sweep = desk.recover()
    assert sweep.requeued == 1
    assert desk.everywhere() == ["1"]
    (third,) = desk.take("clara")
    assert third.deliveries == 2
    assert desk.finish([first, twin], SECOND) == [0, 0]
    assert desk.finish([third], FIRST) == [1]
    assert_ended_once(desk, OF_FIRST)


def test_a_job_that_kills_all_its_executors_is_dead_after_its_deliveries(desk: Desk) -> None:
    """However often it is doubled."""
    desk.enqueue(a_job())
    for _ in range(4):
        for executor in ("anna", "berta", "clara"):
            for run in desk.fetch(executor, lanes=(*READ, QUARANTINE)).deliveries:
                double(desk, run, executor=executor)
        desk.recover()
    assert desk.record()["y"] == "crash_loop"
    assert_ended_once(desk, desk.result()[0], "D")


def test_a_second_copy_that_only_waits_goes_when_the_job_is_recovered(desk: Desk) -> None:
    first = waits(desk)
    desk.silence(first)
    assert desk.recover(silent=False).requeued == 1
    assert desk.waiting() == ["1"]
    (again,) = desk.take("berta")
    assert again.deliveries == 2


def test_a_second_copy_that_an_executor_has_read_and_not_started_is_dropped_by_recovery(desk: Desk) -> None:
    """An executor of an earlier version reads an entry before it starts its job."""
    first = waits(desk)
    (entry,) = desk.read("berta", ["s"])
    desk.silence(entry)
    assert desk.recover(silent=False).requeued == 0
    assert desk.waiting() == ["1"]
    assert desk.finish([first]) == [1]
    assert_ended_once(desk, OF_DONE)


@whichever
def test_a_copy_that_is_handed_back_is_dropped_while_the_other_one_runs(desk: Desk, winner: int) -> None:
    runs = both(desk)
    left, other = runs[1 - winner], runs[winner]
    assert desk.release([left]) == 1
    assert desk.release([left]) == 0
    assert (desk.record()["s"], desk.record()["p"]) == ("X", place(other))
    assert desk.waiting() == ["1"]
    assert told(desk)[1:] == [("stopped", ("anna", "berta")[1 - winner])]
    assert desk.finish([left], SECOND) == [0]
    assert desk.finish([other], FIRST) == [1]
    assert_ended_once(desk, OF_FIRST)


@pytest.mark.parametrize("order", list(permutations([0, 1])), ids=str)
def test_when_both_copies_are_handed_back_the_job_waits_once(desk: Desk, order: tuple[int, int]) -> None:
    runs = both(desk)
    assert desk.release([runs[place] for place in order]) == 2
    assert desk.everywhere() == ["1"]
    assert (desk.record()["s"], desk.pending()) == ("Q", {})
    (third,) = desk.take("clara")
    assert third.deliveries == 1


def test_a_second_copy_that_only_waits_goes_when_the_job_is_handed_back(desk: Desk) -> None:
    first = waits(desk)
    assert desk.release([first]) == 1
    assert desk.waiting() == ["1"]
    assert "S" not in desk.record()
    assert [run.key for run in desk.take("berta")] == ["1"]


@whichever
def test_a_copy_whose_reply_was_lost_is_handed_back(desk: Desk, winner: int) -> None:
    runs = both(desk)
    owner = ("anna", "berta")[1 - winner]
    beat = desk.do(verbs.executors.beat, owner, 0, [])
    assert beat.stranded == [(runs[1 - winner].lane, runs[1 - winner].entry)]
    assert desk.release([runs[1 - winner]], "stranded") == 1
    assert desk.finish([runs[winner]], FIRST) == [1]
    assert_ended_once(desk, OF_FIRST)


@whichever
def test_an_entry_that_an_operator_deleted_does_not_take_the_job_with_it(desk: Desk, winner: int) -> None:
    """The copy that is left decides, and the job is not handed to one that is not there."""
    runs = both(desk)
    desk.redis.xdel(desk.keys["s"], runs[winner].entry)
    if winner == 1:
        assert desk.finish([runs[0]], UNSUCCESSFUL["R"]) == [1]
        assert desk.record()["s"] == "R"
    else:
        assert desk.finish([runs[1]], FIRST) == [1]
        assert desk.result() == [OF_FIRST]
    assert desk.finish([runs[winner]], SECOND) == [0]


def test_a_lane_whose_group_was_made_anew_delivers_both_copies_again_and_the_job_ends_once(
    desk: Desk,
) -> None:
    first, twin = both(desk)
    desk.redis.xgroup_destroy(desk.keys["s"], "fq")
    (again,) = desk.fetch("clara", free=1).deliveries
    (twin_again,) = desk.fetch("dora").deliveries
    assert (again.entry, twin_again.entry) == (first.entry, twin.entry)
    assert desk.finish([twin_again], FIRST) == [1]
    assert desk.finish([first, again, twin], SECOND) == [0, 0, 2]
    assert_ended_once(desk, OF_FIRST)


def test_purge_leaves_both_copies_alone_when_the_group_is_lost(desk: Desk) -> None:
    first, twin = both(desk)
    desk.redis.xgroup_destroy(desk.keys["s"], "fq")
    assert desk.do(verbs.queues.purge, LIFETIMES, 100) == 0
    assert [entry for entry, _ in desk.entries("s")] == [first.entry, twin.entry]
    assert desk.finish([twin], FIRST) == [1]
    assert_ended_once(desk, OF_FIRST)


@pytest.mark.audit(skip="the record is gone")
@whichever
def test_after_flushall_no_copy_ends_anything(desk: Desk, winner: int) -> None:
    runs = both(desk)
    desk.redis.flushall()
    # Otherwise the new entry may get the id of an old one.
    while desk.now() <= int(runs[1].entry.partition("-")[0]):
        pass
    assert desk.finish([runs[winner]], FIRST) == [0]
    assert desk.finish([runs[1 - winner]], SECOND) == [0]
    assert desk.release([runs[winner]]) == 0
    assert double(desk, runs[0]) == [0]
    desk.enqueue(a_job())
    (anew,) = desk.take()
    assert desk.finish(list(runs), SECOND) == [0, 0]
    assert desk.finish([anew], FIRST) == [1]
    assert_ended_once(desk, OF_FIRST)


# Cancelling


def test_cancel_tells_both_executors_and_both_beats_name_the_job(desk: Desk) -> None:
    first, twin = both(desk)
    with desk.subscribed("anna", "berta") as heard:
        assert desk.cancel("1", why="enough") == [2]
        assert heard() == [
            ("anna", f"stop s {first.entry} enough"),
            ("berta", f"stop s {twin.entry} enough"),
        ]
    for executor, run in (("anna", first), ("berta", twin)):
        beat = desk.do(verbs.executors.beat, executor, 0, [("s", run.entry)])
        assert beat.stopping == [("s", run.entry, "enough")]


@unsuccessful
@whichever
def test_the_first_copy_that_stops_ends_a_cancelled_job(desk: Desk, winner: int, kind: str) -> None:
    runs = both(desk)
    desk.cancel("1", why="enough")
    assert desk.finish([runs[winner]], UNSUCCESSFUL[kind]) == [1]
    assert desk.finish([runs[1 - winner]], SECOND) == [0]
    assert desk.finish([runs[winner]], UNSUCCESSFUL[kind]) == [2]
    assert_ended_once(desk, '{"cancelled":"enough"}', "K")
    desk.do(verbs.executors.beat, "anna", 0, [])
    assert desk.redis.exists(desk.keys["stop"]) == 0


@whichever
def test_a_copy_that_was_cancelled_by_its_handler_ends_the_job(desk: Desk, winner: int) -> None:
    runs = both(desk)
    assert desk.finish([runs[winner]], cancelled("asked", RESULT_MS)) == [1]
    assert desk.finish([runs[1 - winner]], SECOND) == [0]
    assert_ended_once(desk, '{"cancelled":"asked"}', "K")


@whichever
def test_a_success_counts_although_the_job_was_asked_to_stop(desk: Desk, winner: int) -> None:
    runs = both(desk)
    desk.cancel("1")
    assert desk.finish([runs[winner]], FIRST) == [1]
    assert desk.finish([runs[1 - winner]], cancelled("cancelled", RESULT_MS)) == [0]
    assert_ended_once(desk, OF_FIRST)


@whichever
def test_a_cancelled_job_whose_executor_died_ends(desk: Desk, winner: int) -> None:
    """When it was the first one; otherwise the first one still has to stop."""
    runs = both(desk)
    desk.cancel("1", why="enough")
    desk.silence(runs[1 - winner])
    assert desk.recover(silent=False).vanished == 0
    assert ("recovered", ("anna", "berta")[1 - winner]) in told(desk)
    other = desk.finish([runs[winner]], cancelled("enough", RESULT_MS))
    assert other == [1 if winner == 0 else 0]
    assert_ended_once(desk, '{"cancelled":"enough"}', "K")


def test_purge_removes_a_second_copy_that_waits_and_the_job_goes_on(desk: Desk) -> None:
    first = waits(desk)
    assert desk.do(verbs.queues.purge, LIFETIMES, 10) == 0
    assert (desk.waiting(), desk.record().get("S")) == (["1"], None)
    assert desk.finish([first], FIRST) == [1]
    assert_ended_once(desk, OF_FIRST)


def test_a_full_queue_that_drops_its_oldest_job_drops_a_second_copy_before_a_job(desk: Desk) -> None:
    first = waits(desk)
    assert desk.do(verbs.jobs.displace, [a_job("2")], 1, LIFETIMES) == [1]
    assert (desk.waiting(), desk.record().get("S")) == (["1", "2"], None)
    assert desk.entries("dlq") == []
    assert double(desk, first) == [1]


# Limits


@whichever
def test_both_copies_hold_one_slot_and_the_end_gives_it_back(desk: Desk, winner: int) -> None:
    desk.enqueue(a_job("2", gates="c1:account", at_ms=1))
    runs = both(desk, gates="c1:account")
    desk.do(verbs.queues.promote, 10)
    assert desk.redis.zrange(desk.keys.slots("c:account"), 0, -1) == [b"1"]
    assert desk.finish([runs[1 - winner]], UNSUCCESSFUL["R"]) == [1]
    assert desk.redis.zrange(desk.keys.slots("c:account"), 0, -1) == [b"1"]
    assert desk.in_lines() == ["2"]
    assert desk.finish([runs[winner]], FIRST) == [1]
    (second,) = desk.take()
    assert second.key == "2"
    desk.finish([second])
    assert desk.keys_of_limits() == []


@whichever
def test_a_dead_copy_keeps_the_slot_for_the_other_one(desk: Desk, winner: int) -> None:
    runs = both(desk, gates="c1:account")
    desk.silence(runs[1 - winner])
    desk.recover(silent=False)
    assert desk.redis.zrange(desk.keys.slots("c:account"), 0, -1) == [b"1"]
    desk.enqueue(a_job("2", gates="c1:account"))
    assert desk.take("clara") == []
    desk.finish([runs[winner]])
    assert [run.key for run in desk.take("clara")] == ["2"]


def test_a_second_start_is_charged_to_the_rate(desk: Desk) -> None:
    desk.enqueue(a_job("0", gates="r3600000000/3:api"))
    desk.take()
    both(desk, gates="r3600000000/3:api")
    desk.enqueue(a_job("2", gates="r3600000000/3:api"))
    assert desk.in_lines() == ["2"]


def test_a_second_copy_does_not_start_when_another_job_has_taken_the_slot(desk: Desk) -> None:
    first = waits(desk, gates="c1:account")
    slots = desk.keys.slots("c:account")
    desk.redis.delete(slots)
    desk.redis.zadd(slots, {"another": 0})
    assert desk.take("berta") == []
    assert (desk.waiting(), desk.record().get("S")) == (["1"], None)
    desk.redis.delete(slots)
    assert desk.finish([first], FIRST) == [1]
    assert_ended_once(desk, OF_FIRST)


def test_a_second_copy_whose_limits_cannot_be_read_is_dropped(desk: Desk) -> None:
    first = waits(desk, gates="c1:account")
    slots = desk.keys.slots("c:account")
    desk.redis.delete(slots)
    desk.redis.set(slots, "a string")
    assert desk.take("berta") == []
    assert (desk.waiting(), desk.record().get("S")) == (["1"], None)
    desk.redis.delete(slots)
    assert desk.finish([first], FIRST) == [1]
    assert_ended_once(desk, OF_FIRST)


# What else belongs to a run


def test_only_the_first_copy_writes_progress_until_it_is_dropped(desk: Desk) -> None:
    first, twin = both(desk)
    reports = [Report(first, b"[1,1,3,10,null]"), Report(twin, b"[2,1,1,10,null]")]
    assert desk.do(verbs.runs.note, reports) == [1, 1]
    assert desk.record()["P"] == "[1,1,3,10,null]"
    desk.finish([first], UNSUCCESSFUL["R"])
    assert desk.do(verbs.runs.note, reports) == [0, 1]
    assert desk.record()["P"] == "[2,1,1,10,null]"


def test_the_leases_of_both_copies_are_renewed_each_by_its_own_executor(desk: Desk) -> None:
    first, twin = both(desk)
    desk.silence()
    assert desk.do(verbs.executors.beat, "anna", 0, [("s", first.entry)]).lost == []
    assert desk.idle(first)[0] < LEASE_MS / 2 < desk.idle(twin)[0]
    assert desk.do(verbs.executors.beat, "berta", 0, [("s", twin.entry)]).lost == []
    assert desk.idle(twin)[0] < LEASE_MS / 2
    assert desk.do(verbs.executors.beat, "anna", 0, [("s", twin.entry)]).lost == [("s", twin.entry)]


@whichever
def test_a_copy_that_meets_a_job_that_ended_otherwise_is_dropped(desk: Desk, winner: int) -> None:
    """A dead job is replayed: no copy of its earlier runs can settle it."""
    runs = both(desk)
    desk.finish([runs[1 - winner]], UNSUCCESSFUL["D"])
    desk.finish([runs[winner]], UNSUCCESSFUL["D"])
    ((entry, _),) = desk.entries("dlq")
    assert desk.do(verbs.dead.replay, [entry]) == [1]
    (again,) = desk.take("clara")
    assert desk.finish(list(runs), SECOND) == [0, 0]
    assert desk.finish([again], FIRST) == [1]
    assert desk.result() == [OF_FIRST]


def test_an_idempotency_key_is_freed_once(desk: Desk) -> None:
    first, twin = both(desk, idempotency="app:welcome:a")
    desk.finish([twin], FIRST)
    desk.finish([first], SECOND)
    assert desk.ttl(desk.keys.idempotency("app:welcome:a")) == about(LIFETIMES.record_ms)
    assert desk.holder("app:welcome:a") == "1"


def test_a_doubled_record_has_the_wire_version_that_an_earlier_fennelq_does_not_start(desk: Desk) -> None:
    waits(desk)
    assert desk.record()["v"] == "2"


def test_without_a_twin_no_script_of_a_run_reads_more_than_before(desk: Desk) -> None:
    """A success of a plain job does not look for a second copy."""

    def run() -> None:
        desk.enqueue(a_job(str(desk.now())))
        desk.finish(desk.take())

    calls = desk.commands_of(run)
    assert calls.get("hmget", 0) + calls.get("hget", 0) + calls.get("hexists", 0) == 0
