"""The ends of jobs, as the scripts write them down for a recorder of the history, and as it reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from fennelq.broker import verbs
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verbs.dead import Restored
from fennelq.broker.verbs.ends import LASTS_MS, End, Taken
from fennelq.broker.verbs.runs import Settled
from fennelq.model.outcome import failure_to_wire, retried, succeeded
from tests.broker.desk import DEAD, DONE, FAILURE, LIFETIMES, Desk, a_job, some_jobs
from tests.kit.server import Server

Act = Callable[[Desk], object]


def take(desk: Desk, most: int = 40, *, recorder: str = "r1", **more: Any) -> Taken:
    return desk.do(verbs.ends.ends_take, recorder, most, **more)


def words(taken: Taken) -> list[str]:
    """The letter and the key of each end."""
    return [f"{end.kind}{end.key}" for entry in taken.entries for end in entry.each()]


def done(desk: Desk, taken: Taken) -> int:
    succeeded = [end.key for entry in taken.entries for end in entry.each() if end.kind in "SN"]
    ends = sum(len(list(entry.each())) for entry in taken.entries)
    return desk.do(verbs.ends.ends_done, [entry.entry for entry in taken.entries], succeeded, ends=ends)


pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]


@pytest.fixture
def recorded(desk: Desk) -> Desk:
    """A queue whose history is recorded."""
    take(desk)
    return desk


# What scripts write


def test_without_a_recorder_ends_are_not_written_down(desk: Desk) -> None:
    desk.finish(desk.executing(), DONE)
    assert desk.record()["a"] == ""
    desk.finish(desk.executing(a_job("2")), DEAD)
    assert not desk.redis.exists(desk.keys["ends"])


def test_each_outcome_that_ends_a_job_is_written_down(recorded: Desk) -> None:
    for key, outcome in (("1", DONE), ("2", succeeded(b"", 0)), ("3", DEAD)):
        recorded.finish(recorded.executing(a_job(key)), outcome)
    assert words(take(recorded)) == ["S1", "N2", "D3"]


def test_a_call_adds_one_entry_however_many_jobs_it_ends(recorded: Desk) -> None:
    recorded.finish(recorded.executing(*some_jobs(5)), DONE)
    (entry,) = take(recorded).entries
    at = int(recorded.record()["z"])
    assert list(entry.each()) == [End(str(key), "S", at) for key in range(1, 6)]


def test_the_entry_of_a_call_has_the_ends_of_all_kinds_in_their_order(recorded: Desk) -> None:
    runs = recorded.executing(*some_jobs(6))
    outcomes = (DEAD, DEAD, DONE, DEAD, DONE, DONE)
    recorded.settle([Settled(run, outcome) for run, outcome in zip(runs, outcomes, strict=True)])
    taken = take(recorded)
    assert (len(taken.entries), words(taken)) == (1, ["D1", "D2", "S3", "D4", "S5", "S6"])


def counted(desk: Desk, **ends: int) -> None:
    """Begin to record a queue that has had so many ends."""
    desk.redis.hset(desk.keys["stats"], mapping=cast("dict[Any, Any]", ends))
    take(desk)


def test_an_entry_has_a_counter_that_has_reached_a_multiple_of_64(desk: Desk) -> None:
    counted(desk, S=62, D=126)
    for key, outcome in (("1", DONE), ("2", DEAD), ("3", DONE), ("4", DEAD), ("5", DONE)):
        desk.finish(desk.executing(a_job(key)), outcome)
    assert [{**fields, "e": ""} for _, fields in desk.entries("ends")] == [
        {"e": ""},
        {"e": ""},
        {"e": "", "S": "64"},
        {"e": "", "D": "128"},
        {"e": ""},
    ]


def test_an_entry_has_the_counters_of_several_kinds_of_ends_and_no_others(desk: Desk) -> None:
    counted(desk, S=63, N=63, D=63, R=63, restored=63)
    runs = desk.executing(*some_jobs(4))
    outcomes = (DONE, succeeded(b"", 0), DEAD, retried(60, FAILURE))
    desk.settle([Settled(run, outcome) for run, outcome in zip(runs, outcomes, strict=True)])
    a_restored_job(desk, "5")
    assert [{**fields, "e": ""} for _, fields in desk.entries("ends")] == [
        {"e": "", "S": "64", "N": "64", "D": "64"},
        {"e": ""},
    ]


def test_a_batch_that_steps_over_a_multiple_of_64_adds_the_counter(desk: Desk) -> None:
    counted(desk, S=62)
    desk.finish(desk.executing(*some_jobs(5)), DONE)
    ((_, fields),) = desk.entries("ends")
    assert fields["S"] == "67"


def a_canceled_job(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.cancel("1")


def a_purged_job(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.do(verbs.queues.purge, LIFETIMES, 100)


def an_expired_job(desk: Desk) -> None:
    desk.enqueue(a_job(expires_ms=60_000))
    desk.redis.hset(desk.keys.record("1"), "E", "1700000000000")


def an_expired_job_that_fetch_meets(desk: Desk) -> None:
    an_expired_job(desk)
    desk.take()


def an_expired_job_that_a_waiter_meets(desk: Desk) -> None:
    an_expired_job(desk)
    desk.do(verbs.jobs.watch, "c", ["1"], LIFETIMES)


def a_job_that_was_asked_to_stop_and_fails(desk: Desk) -> None:
    held = desk.executing()
    desk.cancel("1")
    desk.finish(held, DEAD)


def a_restored_job(desk: Desk, key: str = "1") -> None:
    fields: dict[str, str | bytes] = {
        "task": "app:welcome",
        "arguments": b"[[42],{}]",
        "created": "1700000000000",
    }
    desk.do(verbs.dead.restore, [Restored(key, failure_to_wire(FAILURE, 3), "", fields)], LIFETIMES)


def a_job_in_a_crash_loop(desk: Desk) -> None:
    desk.executing()
    desk.recover(max_deliveries=1)


def a_recovered_job_that_was_asked_to_stop(desk: Desk) -> None:
    desk.executing()
    desk.cancel("1")
    desk.recover()


def a_job_dropped_from_a_full_queue(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.do(verbs.jobs.displace, [a_job("2")], 1, LIFETIMES)


def a_job_whose_outcome_cannot_be_read(desk: Desk) -> None:
    held = desk.executing()
    desk.finish(held, DEAD._replace(value=b"{"))


@pytest.mark.parametrize(
    ("act", "word"),
    [
        (a_canceled_job, "K1"),
        (a_purged_job, "K1"),
        (an_expired_job_that_fetch_meets, "K1"),
        (an_expired_job_that_a_waiter_meets, "K1"),
        (a_job_that_was_asked_to_stop_and_fails, "K1"),
        (a_job_in_a_crash_loop, "D1"),
        (a_recovered_job_that_was_asked_to_stop, "K1"),
        (a_job_dropped_from_a_full_queue, "D1"),
        (a_job_whose_outcome_cannot_be_read, "D1"),
    ],
)
def test_every_script_that_ends_a_job_writes_it_down(desk: Desk, act: Act, word: str) -> None:
    counted(desk, D=63, K=63)
    act(desk)
    taken = take(desk)
    assert words(taken) == [word]
    assert taken.missed.number == 0
    ((_, fields),) = desk.entries("ends")
    assert fields[word[0]] == "64"


def test_a_restored_job_is_written_down_and_counts_as_no_further_death(recorded: Desk) -> None:
    a_restored_job(recorded)
    taken = take(recorded)
    assert (words(taken), taken.missed.number) == (["D1"], 0)


def test_restores_alone_do_not_let_the_entries_grow_without_bound(recorded: Desk) -> None:
    """They reach no counter whose multiples of 64 limit the entries."""
    with recorded.redis.pipeline(transaction=False) as pipe:
        for _ in range(10_500):
            pipe.xadd(recorded.keys["ends"], {"e": ""})
        pipe.execute()
    a_restored_job(recorded)
    assert recorded.redis.xlen(recorded.keys["ends"]) < 10_200


def test_a_restored_job_hides_no_death_that_was_missed(recorded: Desk) -> None:
    recorded.finish(recorded.executing(a_job("2")), DEAD)
    recorded.redis.xtrim(recorded.keys["ends"], maxlen=0, approximate=False)
    a_restored_job(recorded)
    taken = take(recorded)
    assert (words(taken), taken.missed.number) == (["D1"], 1)


def test_an_end_is_written_down_when_leavings_act_at_it(recorded: Desk) -> None:
    runs = recorded.executing(*some_jobs(2))
    recorded.do(verbs.jobs.watch, "c", ["1", "2"], LIFETIMES)
    recorded.finish(runs[:1], DONE)
    recorded.finish(runs[1:], succeeded(b"", 0))
    assert words(take(recorded)) == ["S1", "N2"]


def test_a_run_that_does_not_end_its_job_is_not_written_down(recorded: Desk) -> None:
    recorded.release(recorded.executing())
    recorded.take()
    recorded.recover()
    assert recorded.entries("ends") == []


def test_success_leaves_the_arguments_until_they_are_recorded(recorded: Desk) -> None:
    recorded.finish(recorded.executing(*some_jobs(2)), DONE)
    taken = take(recorded)
    assert [recorded.record(key)["a"] for key in "12"] == ["[42]", "[42]"]
    assert done(recorded, taken) == 1
    assert [recorded.record(key)["a"] for key in "12"] == ["", ""]
    assert recorded.entries("ends") == []


def test_the_arguments_of_a_job_whose_result_is_not_kept_are_emptied_too(recorded: Desk) -> None:
    recorded.finish(recorded.executing(), succeeded(b"", 0))
    assert recorded.record()["a"] == "[42]"
    done(recorded, take(recorded))
    assert recorded.record()["a"] == ""


def test_what_is_recorded_is_pending_no_more(recorded: Desk) -> None:
    """Otherwise the next recorder would miss the entry, because it is removed."""
    recorded.finish(recorded.executing(), DONE)
    done(recorded, take(recorded))
    assert take(recorded, recorder="r2", abandoned_ms=0).missed.number == 0


def test_only_arguments_of_jobs_that_have_succeeded_are_emptied(recorded: Desk) -> None:
    recorded.dead()
    recorded.do(verbs.ends.ends_done, [], ["1", "unknown"])
    assert recorded.record()["a"] == "[42]"
    assert not recorded.redis.exists(recorded.keys.record("unknown"))


def fill(desk: Desk) -> None:
    """More entries than the stream keeps."""
    with desk.redis.pipeline(transaction=False) as page:
        for _ in range(10_300):
            page.xadd(desk.keys["ends"], {"e": "0 S0"})
        page.execute()


def test_the_stream_is_bounded_while_no_recorder_reads(recorded: Desk) -> None:
    fill(recorded)
    recorded.finish(recorded.executing(*some_jobs(64)), DONE)
    assert recorded.redis.xlen(recorded.keys["ends"]) <= 10_100


def test_the_stream_is_bounded_although_the_counters_are_damaged(recorded: Desk) -> None:
    fill(recorded)
    recorded.redis.set(recorded.keys["stats"], "x")
    recorded.finish(recorded.executing(), DONE)
    assert recorded.redis.xlen(recorded.keys["ends"]) <= 10_100
    recorded.redis.delete(recorded.keys["stats"])


def test_a_key_of_a_wrong_type_does_not_stop_a_script(desk: Desk) -> None:
    desk.redis.set(desk.keys["ends"], "x")
    assert desk.finish(desk.executing(), DONE) == [1]
    with pytest.raises(ReplyError, match=r"WRONGTYPE.*ends"):
        take(desk)
    desk.redis.delete(desk.keys["ends"])


# What a recorder reads


def test_the_stream_expires_a_day_after_the_latest_look(desk: Desk) -> None:
    take(desk)
    assert LASTS_MS - 5000 < desk.ttl(desk.keys["ends"]) <= LASTS_MS
    desk.redis.pexpire(desk.keys["ends"], 60_000)
    take(desk)
    assert LASTS_MS - 5000 < desk.ttl(desk.keys["ends"]) <= LASTS_MS


def test_each_entry_is_given_to_one_recorder(recorded: Desk) -> None:
    for key in "123":
        recorded.finish(recorded.executing(a_job(key)), DONE)
    assert words(take(recorded, 2)) == ["S1", "S2"]
    assert words(take(recorded, recorder="r2")) == ["S3"]
    assert take(recorded).entries == []


def test_entries_of_a_recorder_that_is_gone_are_given_to_another(recorded: Desk) -> None:
    recorded.finish(recorded.executing(), DONE)
    take(recorded)
    assert take(recorded, recorder="r2", abandoned_ms=60_000).entries == []
    again = take(recorded, recorder="r2", abandoned_ms=0)
    assert words(again) == ["S1"]
    assert again.missed.number == 0
    done(recorded, again)
    assert take(recorded, recorder="r3", abandoned_ms=0).entries == []


def test_a_group_that_was_deleted_is_made_again(recorded: Desk) -> None:
    recorded.finish(recorded.executing(), DONE)
    recorded.redis.xgroup_destroy(recorded.keys["ends"], "history")
    assert words(take(recorded)) == ["S1"]
    recorded.redis.xgroup_destroy(recorded.keys["ends"], "history")
    again = take(recorded)
    assert (words(again), again.missed.number) == (["S1"], 0)


def test_recorders_that_are_long_silent_and_have_no_entries_are_forgotten(recorded: Desk) -> None:
    for key, recorder in (("1", "r1"), ("2", "r2"), ("3", "r3")):
        recorded.finish(recorded.executing(a_job(key)), DONE)
        taken = take(recorded, recorder=recorder)
        if recorder != "r2":
            done(recorded, taken)
    take(recorded, recorder="r3", abandoned_ms=60_000)
    assert consumers(recorded) == {"r1", "r2", "r3"}
    assert words(take(recorded, recorder="r3", abandoned_ms=0)) == ["S2"]
    assert consumers(recorded) == {"r3"}


def test_the_first_look_at_a_queue_may_also_ask_for_abandoned_entries(desk: Desk) -> None:
    """Nothing was written down before it, so there is no stream."""
    desk.finish(desk.executing(), DONE)
    first = take(desk, abandoned_ms=0)
    assert (first.entries, first.missed.number) == ([], 0)
    desk.finish(desk.executing(a_job("2")), DONE)
    assert words(take(desk, abandoned_ms=0)) == ["S2"]


def test_a_recorder_that_may_not_list_the_others_gets_its_entries(recorded: Desk, server: Server) -> None:
    recorded.finish(recorded.executing(), DONE)
    take(recorded)
    with recorded.as_user(server, "xinfo"):
        assert words(take(recorded, recorder="r2", abandoned_ms=0)) == ["S1"]
    assert consumers(recorded) == {"r1", "r2"}


def test_a_recorder_that_still_has_entries_is_not_forgotten(recorded: Desk) -> None:
    for key in "12":
        recorded.finish(recorded.executing(a_job(key)), DONE)
    assert words(take(recorded)) == ["S1", "S2"]
    assert words(take(recorded, 1, recorder="r2", abandoned_ms=0)) == ["S1"]
    assert consumers(recorded) == {"r1", "r2"}


def test_a_recorder_that_takes_abandoned_entries_reads_no_others(recorded: Desk) -> None:
    """They are not missed, although the counters have them already."""
    recorded.finish(recorded.executing(a_job("1")), DONE)
    take(recorded)
    recorded.finish(recorded.executing(a_job("2")), DONE)
    taken = take(recorded, recorder="r2", abandoned_ms=0)
    assert (words(taken), taken.missed.number) == (["S1"], 0)
    assert words(take(recorded, recorder="r2")) == ["S2"]


def consumers(desk: Desk) -> set[str]:
    reply = cast("Any", desk.redis.xinfo_consumers(desk.keys["ends"], "history"))
    return {consumer["name"].decode() for consumer in reply}


# Gaps


def test_ends_before_the_first_look_are_not_missed(desk: Desk) -> None:
    desk.finish(desk.executing(*some_jobs(3)), DONE)
    assert take(desk).missed.number == 0
    desk.finish(desk.executing(a_job("4")), DONE)
    assert take(desk).missed.number == 0


def test_ends_of_a_new_queue_before_the_first_look_are_missed_by_a_recorder_that_runs(desk: Desk) -> None:
    desk.finish(desk.executing(*some_jobs(3)), DONE)
    desk.finish(desk.executing(a_job("4")), DEAD)
    missed = take(desk, begin=True).missed
    assert (missed.number, missed.of) == (4, {"S": 3, "D": 1})


def test_entries_that_were_cut_off_are_missed(recorded: Desk) -> None:
    recorded.finish(recorded.executing(*some_jobs(3)), DONE)
    recorded.finish(recorded.executing(*(a_job(key) for key in "45")), DEAD)
    recorded.finish(recorded.executing(a_job("6")), DONE)
    recorded.redis.xtrim(recorded.keys["ends"], maxlen=1, approximate=False)
    taken = take(recorded)
    assert words(taken) == ["S6"]
    assert (taken.missed.number, taken.missed.of) == (5, {"S": 3, "D": 2})
    assert taken.missed.since_ms <= taken.missed.until_ms
    assert taken.missed.found == 5
    assert take(recorded).missed == taken.missed._replace(found=0)


def test_a_gap_is_found_before_all_entries_are_read(desk: Desk) -> None:
    counted(desk, S=60)
    for key in "12345":
        desk.finish(desk.executing(a_job(key)), DONE)
    desk.redis.xtrim(desk.keys["ends"], maxlen=3, approximate=False)
    assert take(desk, 1).missed.number == 0
    missed = take(desk, 1).missed
    assert (missed.number, missed.of) == (2, {"S": 2})
    assert take(desk).missed.number == 2


def test_entries_of_earlier_versions_have_all_counters(recorded: Desk) -> None:
    recorded.redis.hset(recorded.keys["stats"], mapping={"S": 5, "D": 1})
    for text, *counter in (("17 S1 S2", "S", "2"), ("18 S5", "S", "5"), ("18 D6", "D", "1")):
        recorded.redis.xadd(recorded.keys["ends"], {"e": text, counter[0]: counter[1]})
    taken = take(recorded, 2)
    assert (words(taken), taken.missed.number, taken.missed.of) == (["S1", "S2", "S5"], 2, {"S": 2})
    assert take(recorded).missed.number == 2


def test_ends_after_the_stream_has_expired_are_missed(recorded: Desk) -> None:
    recorded.finish(recorded.executing(), DONE)
    done(recorded, take(recorded))
    recorded.redis.delete(recorded.keys["ends"])
    recorded.finish(recorded.executing(*(a_job(key) for key in "234")), DONE)
    missed = take(recorded).missed
    assert (missed.number, missed.of) == (3, {"S": 3})


def test_gaps_add_up(recorded: Desk) -> None:
    for key in "12":
        recorded.finish(recorded.executing(a_job(key)), DONE)
        recorded.redis.xtrim(recorded.keys["ends"], maxlen=0, approximate=False)
        take(recorded)
    assert take(recorded).missed.number == 2


def test_an_entry_that_was_cut_off_while_a_recorder_had_it_is_missed(recorded: Desk) -> None:
    recorded.finish(recorded.executing(), DONE)
    take(recorded)
    recorded.redis.xtrim(recorded.keys["ends"], maxlen=0, approximate=False)
    assert take(recorded, recorder="r2", abandoned_ms=0).missed.number == 1
    recorded.redis.delete(recorded.keys["ends"])
    assert take(recorded).missed.number == 1, "it is not missed again with the stream"


def test_ends_that_a_recorder_had_taken_are_missed_when_the_stream_expires(recorded: Desk) -> None:
    recorded.finish(recorded.executing(*(a_job(key) for key in "123")), DONE)
    recorded.finish(recorded.executing(*(a_job(key) for key in "45")), DONE)
    assert len(take(recorded, most=1).entries) == 1
    done(recorded, take(recorded, recorder="other"))
    for _ in range(2):
        recorded.redis.delete(recorded.keys["ends"])
        assert take(recorded).missed.number == 3
    assert take(recorded).missed.number == 3


def test_marks_that_are_damaged_do_not_stop_a_recorder(recorded: Desk) -> None:
    recorded.finish(recorded.executing(), DONE)
    damaged: dict[Any, Any] = {
        "missed": "abc",
        "since": "x",
        "until": "nan",
        "at": "9" * 400,
        "S": "nan",
        "taken": "y",
    }
    recorded.redis.hset(recorded.keys["ends:read"], mapping=damaged)
    taken = take(recorded)
    assert [end.key for entry in taken.entries for end in entry.each()] == ["1"]
    assert (taken.missed.since_ms, taken.missed.until_ms) == (0, 0)


@pytest.mark.parametrize("lost", [0, 2])
def test_marks_of_a_wrong_type_are_written_anew(recorded: Desk, lost: int) -> None:
    recorded.redis.delete(recorded.keys["ends:read"])
    recorded.redis.rpush(recorded.keys["ends:read"], "what?")
    recorded.finish(recorded.executing(a_job("1")), DONE)
    recorded.finish(recorded.executing(a_job("2")), DONE)
    recorded.redis.xtrim(recorded.keys["ends"], maxlen=2 - lost, approximate=False)
    assert words(take(recorded)) == ["S1", "S2"][lost:]
    assert recorded.redis.hget(recorded.keys["ends:read"], "S") == b"2"
    assert take(recorded).missed.number == 0


def test_counters_that_were_deleted_are_no_gap(recorded: Desk) -> None:
    recorded.finish(recorded.executing(*some_jobs(3)), DONE)
    take(recorded)
    recorded.redis.delete(recorded.keys["stats"])
    recorded.finish(recorded.executing(a_job("4")), DONE)
    taken = take(recorded)
    assert (words(taken), taken.missed.number) == (["S4"], 0)


def test_a_counter_that_was_deleted_hides_no_gap_of_another(recorded: Desk) -> None:
    recorded.finish(recorded.executing(*some_jobs(3)), DONE)
    take(recorded)
    recorded.redis.hset(recorded.keys["stats"], "S", 1)
    recorded.finish(recorded.executing(a_job("4")), DEAD)
    recorded.redis.xtrim(recorded.keys["ends"], maxlen=0, approximate=False)
    missed = take(recorded).missed
    assert (missed.number, missed.of) == (1, {"D": 1})


def test_an_entry_that_no_arrow_wrote_is_passed_over(recorded: Desk) -> None:
    for fields in ({"x": "y"}, {"e": "no time S1"}, {"e": "17 Q1 S "}):
        recorded.redis.xadd(recorded.keys["ends"], cast("Any", fields))
    taken = take(recorded)
    assert (len(taken.entries), words(taken)) == (3, [])
    assert done(recorded, taken) == 3


# Records


def test_records_have_what_the_history_keeps(recorded: Desk) -> None:
    recorded.dead()
    (record,) = recorded.do(verbs.ends.ends_read, ["1"])
    assert record is not None
    assert (record.task, record.status, record.arguments) == (b"app:welcome", b"D", b"[42]")
    assert record.failure is not None
    assert b"no such user" in record.failure
    assert record.history is None


def test_records_have_their_lines_of_history(recorded: Desk) -> None:
    recorded.release(recorded.executing())
    recorded.finish(recorded.take(), DONE)
    (record,) = recorded.do(verbs.ends.ends_read, ["1"])
    assert record is not None
    assert record.history is not None
    assert [line["what"] for line in recorded.history()] == ["stopped"]
    assert record.history == recorded.redis.lrange(recorded.keys.history("1"), 0, -1)


def test_a_record_that_is_gone_or_damaged_is_none(recorded: Desk) -> None:
    recorded.redis.set(recorded.keys.record("damaged"), "x", ex=60)
    assert recorded.do(verbs.ends.ends_read, ["gone", "damaged"]) == [None, None]
    recorded.redis.delete(recorded.keys.record("damaged"))


def test_large_records_come_in_several_replies(recorded: Desk) -> None:
    large = [a_job(str(key), args=b'["' + b"x" * 600_000 + b'"]') for key in range(3)]
    recorded.enqueue(large[0])
    recorded.enqueue(large[1])
    recorded.enqueue(large[2])
    assert len(recorded.do(verbs.ends.ends_read, ["0", "1", "2"])) == 2
    assert len(recorded.do(verbs.ends.ends_read, ["2"])) == 1


@pytest.mark.parametrize("field", ["a", "x"])
def test_a_record_that_lacks_a_field_or_has_a_large_one_is_read_like_others(
    recorded: Desk, field: str
) -> None:
    for key in "123":
        recorded.finish(recorded.executing(a_job(key)), DONE)
        recorded.redis.hset(recorded.keys.record(key), field, "x" * 600_000)
    assert len(recorded.do(verbs.ends.ends_read, ["1", "2", "3"])) == 2
    recorded.redis.hdel(recorded.keys.record("1"), "a", "x")
    (record,) = recorded.do(verbs.ends.ends_read, ["1"])
    assert record is not None
    assert (record.arguments, record.failure) == (None, None)


def test_a_viewer_may_read_records(recorded: Desk, server: Any) -> None:
    recorded.finish(recorded.executing(), DONE)
    with recorded.as_viewer(server):
        assert recorded.do(verbs.ends.ends_read, ["1"])[0] is not None
