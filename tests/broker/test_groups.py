"""The index of the dead jobs by group: `groups` reads it, `index` completes it, and what moves dead jobs keeps it.

After each test, the audit compares the index with a recount of the entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import orjson
import pytest

from fennelq.broker import verbs
from fennelq.broker.verbs.dead import DeadGroup, GroupIndex, order
from fennelq.broker.verbs.runs import Settled
from fennelq.manage.invariants.groups import MOST_GROUPS
from fennelq.model.fingerprint import fingerprint_of
from fennelq.model.job import Delivery, JobFailure, new_key
from fennelq.model.outcome import Outcome, died, retried
from tests.broker.before import Before
from tests.broker.desk import DEAD, DONE, FAILURE, LIFETIMES, RESULT_MS, Desk, a_job, some_jobs
from tests.kit.audit import problems
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers

RED, BLUE = "0000beef", "1111beef"
KEYS: Final = ("dlq:g", "dlq:f", "dlq:l")
DERIVED: Final = fingerprint_of(FAILURE.reason, "app:welcome", FAILURE.error_type)


@pytest.fixture
def before(desk: Desk) -> Before:
    """An executor of the release before, which knows no groups."""
    return Before(desk, "before_groups.json", {})


def of_kind(fingerprint: str, **given: str) -> Outcome:
    """A death with this fingerprint."""
    return died(FAILURE._replace(fingerprint=fingerprint, **given), 3, RESULT_MS)


def die(desk: Desk, kinds: Sequence[str], prefix: str = "") -> list[str]:
    """A job dies of each of these kinds; returns their entries."""
    for some in (kinds[at : at + 100] for at in range(0, len(kinds), 100)):
        settle(desk, desk.executing(*(a_job(f"{prefix}{new_key()}") for _ in some)), some)
    return [entry for entry, _ in desk.entries("dlq")][-len(kinds) :]


def settle(desk: Desk, runs: list[Delivery], kinds: Iterable[str]) -> list[int]:
    return desk.do(
        verbs.runs.finish,
        [Settled(run, of_kind(kind)) for run, kind in zip(runs, kinds, strict=True)],
        LIFETIMES,
    )


def groups(desk: Desk) -> dict[str, int]:
    return {group.fingerprint: group.jobs for group in index(desk).groups}


def index(desk: Desk) -> GroupIndex:
    return desk.do(verbs.dead.groups)


def group(desk: Desk, fingerprint: str) -> DeadGroup:
    (found,) = [one for one in index(desk).groups if one.fingerprint == fingerprint]
    return found


def keys_of_index(desk: Desk) -> list[str]:
    return [name for name in KEYS if desk.redis.exists(desk.keys[name])]


# What dies


def test_dead_jobs_are_counted_by_their_fingerprints(desk: Desk) -> None:
    first, _, last = die(desk, [RED, BLUE, RED])
    assert groups(desk) == {RED: 2, BLUE: 1}
    assert group(desk, RED) == DeadGroup(
        RED, 2, "app:welcome", "ValueError", "no such user", "failed", first, last
    )
    assert [fields["f"] for _, fields in desk.entries("dlq")] == [RED, BLUE, RED]
    assert index(desk).is_complete


def test_the_first_job_of_a_group_is_shown_whatever_comes_later(desk: Desk) -> None:
    first, second = desk.executing(*some_jobs(2))
    desk.finish([first], of_kind(RED, message="order 1"))
    desk.finish([second], of_kind(RED, message="order 2"))
    assert group(desk, RED).message == "order 1"


def test_the_reply_shows_which_job_begins_a_group(desk: Desk) -> None:
    runs = desk.executing(*some_jobs(4))
    assert settle(desk, runs[:3], [RED, RED, BLUE]) == [3, 1, 3]
    assert settle(desk, runs[3:], [RED]) == [1]
    assert settle(desk, runs, [RED] * 4) == [2] * 4


def test_what_does_not_die_after_a_death_begins_no_group(desk: Desk) -> None:
    first, second, third = desk.executing(*some_jobs(3))
    settled = [Settled(first, of_kind(RED)), Settled(second, retried(60, FAILURE)), Settled(third, DONE)]
    assert desk.do(verbs.runs.finish, settled, LIFETIMES) == [3, 1, 1]


@pytest.mark.parametrize(
    "given",
    ["", "0000BEE", "0000beef0", "other", "@", "0000bee!", 12345678, None, ["x"], {"a": 1}, 1.5, True],
)
def test_a_failure_without_a_valid_fingerprint_is_told_apart_by_reason_task_and_type(
    desk: Desk, given: object
) -> None:
    (run,) = desk.executing()
    failure = orjson.dumps({**orjson.loads(DEAD.error), "f": given})
    assert desk.finish([run], DEAD._replace(error=failure)) == [1]
    assert groups(desk) == {DERIVED: 1}
    assert [fields["f"] for _, fields in desk.entries("dlq")] == [DERIVED]


def test_a_job_that_has_died_too_often_is_in_a_group_of_its_task(desk: Desk) -> None:
    desk.executing()
    assert desk.recover(max_deliveries=1).dead == 1
    assert groups(desk) == {fingerprint_of("crash_loop", "app:welcome", "CrashLoop"): 1}


def test_a_job_that_cannot_be_settled_is_in_a_group_of_its_task(desk: Desk) -> None:
    desk.finish(desk.executing(), Outcome("?"))
    assert groups(desk) == {fingerprint_of("broken", "app:welcome", "Broken"): 1}


@pytest.mark.audit(leavings_fail=True)
def test_a_death_that_is_undone_half_way_counts_once(desk: Desk) -> None:
    """Its result cannot be written, so it is buried as broken instead."""
    (run,) = desk.executing()
    desk.redis.set(desk.keys.result("1"), "what?")
    assert desk.finish([run], of_kind(RED)) == [1]
    assert groups(desk) == {fingerprint_of("broken", "app:welcome", "Broken"): 1}
    assert len(desk.entries("dlq")) == 1


def test_a_job_that_makes_room_is_in_a_group(desk: Desk) -> None:
    desk.enqueue(*some_jobs(2))
    desk.do(verbs.jobs.displace, [a_job("3")], 2, LIFETIMES)
    assert groups(desk) == {fingerprint_of("dropped", "app:welcome", "Dropped"): 1}


def test_a_job_of_an_unknown_wire_version_is_in_a_group(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.redis.hset(desk.keys.record("1"), "v", "9")
    desk.fetch(lifetimes=LIFETIMES._replace(patience_ms=0))
    assert index(desk).length == sum(groups(desk).values()) == 1


def test_hostile_texts_are_cut_and_can_be_read(desk: Desk) -> None:
    huge = "\x1b[31m\u202e{}'\"\\" * 100_000
    desk.finish(
        desk.executing(a_job(task="app:\x1b[2J" + "x" * 5000)),
        died(JobFailure(huge[:256], huge[:4096], reason="failed", fingerprint=RED), 1, RESULT_MS),
    )
    found = group(desk, RED)
    assert found.task.startswith("app:\x1b[2J")
    assert max(map(len, (found.task, found.error_type, found.message))) <= 256


@pytest.mark.parametrize("begin", ["", "a", "ab", "abc"])
@pytest.mark.parametrize("character", ["é", "€", "🌿"])
def test_a_text_is_not_cut_inside_a_character(desk: Desk, begin: str, character: str) -> None:
    failure = JobFailure("ValueError", begin + character * 300, reason="failed", fingerprint=RED)
    desk.finish(desk.executing(), died(failure, 1, RESULT_MS))
    size = len(character.encode())
    expected = begin + character * ((200 - len(begin)) // size)
    assert desk.entries("dlq")[0][1]["m"] == group(desk, RED).message == expected


def test_a_character_that_ends_where_a_text_is_cut_stays(desk: Desk) -> None:
    failure = JobFailure("ValueError", "é" * 100 + "tail", reason="failed", fingerprint=RED)
    desk.finish(desk.executing(), died(failure, 1, RESULT_MS))
    assert desk.entries("dlq")[0][1]["m"] == "é" * 100


@pytest.mark.parametrize(
    "damaged",
    [
        b"\xff\xfe",
        b"\x80",
        b"\xc0\xaf",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xe2\x82",
    ],
)
def test_the_index_has_only_texts_that_can_be_read(desk: Desk, damaged: bytes) -> None:
    desk.enqueue(a_job())
    desk.redis.hset(desk.keys.record("1"), "t", "app:\u00e9 ".encode() + damaged + b" ok")
    desk.finish(desk.take(), died(FAILURE._replace(fingerprint=RED), 1, RESULT_MS))
    look: Any = desk.redis.hget(desk.keys["dlq:f"], RED)
    task = "app:é " + damaged.decode("utf-8", "backslashreplace") + " ok"
    assert (
        orjson.loads(look if isinstance(look, bytes) else look.encode("utf-8", "surrogateescape"))["task"]
        == task
    )
    assert group(desk, RED).task == task


def test_the_first_and_the_last_character_of_each_length_are_shown_as_they_are(desk: Desk) -> None:
    edges = "\x80\u07ff\u0800\u0fff\u1000\ud7ff\ue000\uffff\U00010000\U0003ffff\U00040000\U0010ffff"
    desk.finish(desk.executing(a_job(task=f"app:{edges}")), of_kind(RED))
    assert group(desk, RED).task == f"app:{edges}"


# What leaves


def test_a_replayed_job_leaves_its_group(desk: Desk) -> None:
    first, second, _ = die(desk, [RED, RED, BLUE])
    assert desk.do(verbs.dead.replay, [first]) == [1]
    assert groups(desk) == {RED: 1, BLUE: 1}
    assert desk.do(verbs.dead.replay, [first, second]) == [0, 1]
    assert groups(desk) == {BLUE: 1}


def test_a_forgotten_job_leaves_its_group(desk: Desk) -> None:
    first, second, _ = die(desk, [RED, RED, BLUE])
    assert desk.do(verbs.dead.forget, [first, first, second]) == 2
    assert groups(desk) == {BLUE: 1}


def test_a_collected_job_leaves_its_group(desk: Desk) -> None:
    die(desk, [RED, RED, BLUE, RED])
    assert desk.gc(max_len=1) == (3, 0)
    assert groups(desk) == {RED: 1}


def test_an_index_without_dead_jobs_leaves_no_key(desk: Desk) -> None:
    entries = die(desk, [RED, BLUE, RED])
    desk.index()
    assert keys_of_index(desk) == [*KEYS]
    desk.do(verbs.dead.forget, entries[:2])
    desk.do(verbs.dead.replay, entries[2:])
    assert keys_of_index(desk) == []


def test_a_job_that_dies_again_is_counted_again(desk: Desk) -> None:
    (entry,) = die(desk, [RED])
    desk.do(verbs.dead.replay, [entry])
    assert settle(desk, desk.take(), [BLUE]) == [3]
    assert groups(desk) == {BLUE: 1}


def test_a_group_that_was_empty_is_new_again(desk: Desk) -> None:
    desk.do(verbs.dead.replay, die(desk, [RED]))
    assert settle(desk, desk.take(), [RED]) == [3]


@pytest.mark.audit(lost={"mail:1"})
def test_an_entry_that_is_still_dead_stays_in_its_group(desk: Desk) -> None:
    """Another job holds its key."""
    (entry,) = desk.dead(a_job("1", idempotency="app:welcome:42"), outcome=of_kind(RED))
    desk.redis.delete(desk.keys.idempotency("app:welcome:42"))
    desk.enqueue(a_job("2", idempotency="app:welcome:42"))
    assert desk.do(verbs.dead.replay, [entry]) == [-1]
    assert groups(desk) == {RED: 1}


# Very many kinds


def many(number: int, first: int = 0) -> list[str]:
    return [f"{kind:08x}" for kind in range(first, first + number)]


def test_of_5000_kinds_1000_have_a_group_and_the_others_share_one(desk: Desk) -> None:
    die(desk, many(5000))
    found = Counter(groups(desk))
    assert (len(found), found["other"], index(desk).is_complete) == (MOST_GROUPS + 1, 4000, True)
    assert group(desk, "other").jobs == 4000


def test_a_kind_that_has_no_group_is_never_new(desk: Desk) -> None:
    die(desk, many(MOST_GROUPS))
    runs = desk.executing(*some_jobs(2))
    assert settle(desk, runs, [RED, many(1)[0]]) == [1, 1]


def test_jobs_of_one_kind_are_in_one_group_although_others_end_meanwhile(desk: Desk) -> None:
    """While there are others, no group begins. So a job that leaves is subtracted where it was added."""
    entries = die(desk, [*many(MOST_GROUPS), RED])
    desk.do(verbs.dead.forget, entries[:100])
    more = die(desk, [RED, BLUE], prefix="more")
    assert groups(desk)["other"] == 3
    desk.do(verbs.dead.forget, [entries[-1], more[1]])
    assert groups(desk)["other"] == 1
    desk.do(verbs.dead.forget, [more[0]])
    assert "other" not in groups(desk)
    die(desk, [RED], prefix="again")
    assert groups(desk)[RED] == 1


# Executors of the release before


def die_before(desk: Desk, before: Before, keys: Iterable[str], outcome: Outcome = DEAD) -> None:
    desk.enqueue(*map(a_job, keys))
    before.finish(before.fetch(), outcome)


def test_what_the_release_before_has_buried_is_counted_in_pages(desk: Desk, before: Before) -> None:
    die_before(desk, before, map(str, range(25)))
    assert groups(desk) == {}
    assert [desk.do(verbs.dead.index, 10) for _ in range(4)] == [
        (10, True, False),
        (10, True, False),
        (5, False, False),
        (0, False, False),
    ]
    assert groups(desk) == {DERIVED: 25}
    assert index(desk).is_complete


def test_between_two_pages_deaths_and_replays_are_counted_once(desk: Desk, before: Before) -> None:
    die_before(desk, before, map(str, range(10)))
    entries = [entry for entry, _ in desk.entries("dlq")]
    desk.do(verbs.dead.index, 4)
    die(desk, [DERIVED, RED], prefix="new")
    # One that is counted, and one that is not.
    assert desk.do(verbs.dead.replay, [entries[0], entries[9]]) == [1, 1]
    assert desk.do(verbs.dead.forget, [entries[3], entries[4]]) == 2
    assert groups(desk) == {DERIVED: 3, RED: 1}
    desk.index(4)
    assert groups(desk) == {DERIVED: 7, RED: 1}
    # The first one was replayed since: what is left is not before it.
    assert group(desk, DERIVED).first == entries[0]


def test_the_first_and_the_newest_entry_of_a_group_are_right_when_older_ones_are_counted_later(
    desk: Desk, before: Before
) -> None:
    die_before(desk, before, "a", died(FAILURE._replace(message="the oldest"), 1, RESULT_MS))
    (_, newest) = die(desk, [RED, DERIVED])
    assert group(desk, DERIVED).first == newest
    desk.index()
    oldest = desk.entries("dlq")[0][0]
    assert (group(desk, DERIVED).first, group(desk, DERIVED).newest) == (oldest, newest)
    assert group(desk, DERIVED).message == "the oldest"


def test_what_such_an_executor_buries_later_is_counted_later(desk: Desk, before: Before) -> None:
    die(desk, [RED])
    assert desk.index() == 0
    die_before(desk, before, "ab")
    assert (groups(desk), index(desk).is_complete) == ({RED: 1}, False)
    assert desk.index() == 2
    assert groups(desk) == {RED: 1, DERIVED: 2}


@pytest.mark.parametrize("act", ["replay", "forget", "gc"])
def test_what_such_an_executor_removes_is_found(
    desk: Desk, before: Before, act: Literal["replay", "forget", "gc"]
) -> None:
    entries = die(desk, [RED, BLUE, RED])
    desk.index()
    if act == "gc":
        assert before.gc(max_len=1) == (2, 0)
    else:
        before.remove(act, entries[:2])
    assert groups(desk) == {RED: 2, BLUE: 1}
    assert desk.do(verbs.dead.index, 10) == (0, True, True)
    assert desk.index() == 1
    assert groups(desk) == {RED: 1}


def test_an_index_with_more_jobs_than_there_are_is_found_at_once(desk: Desk, before: Before) -> None:
    """Not only with the last page."""
    die_before(desk, before, map(str, range(10)))
    desk.do(verbs.dead.index, 4)
    before.remove("forget", [entry for entry, _ in desk.entries("dlq")][:9])
    assert desk.do(verbs.dead.index, 1) == (0, True, True)
    desk.index()
    assert groups(desk) == {DERIVED: 1}


def test_numbers_that_add_up_although_they_are_wrong_are_found(desk: Desk, before: Before) -> None:
    """It has removed a job that is counted, and has buried one that is not."""
    entries = die(desk, [RED, BLUE])
    desk.index()
    before.remove("forget", entries[:1])
    die_before(desk, before, "a")
    assert index(desk).is_complete
    desk.index()
    assert groups(desk) == {BLUE: 1, DERIVED: 1}


def test_what_it_replays_runs_and_dies_here(desk: Desk, before: Before) -> None:
    entries = die(desk, [RED])
    before.remove("replay", entries)
    settle(desk, desk.take(), [RED])
    desk.index()
    assert groups(desk) == {RED: 1}


# What is wrong is found


@pytest.mark.parametrize("gone", KEYS)
@pytest.mark.parametrize("how", ["is gone", "is of a wrong type"])
def test_an_index_of_which_a_key_is_lost_is_made_anew(desk: Desk, gone: str, how: str) -> None:
    first, *_, last = die(desk, [RED, BLUE, RED] * 5)
    desk.index()
    good = index(desk)
    desk.redis.delete(desk.keys[gone])
    if how == "is of a wrong type":
        desk.redis.set(desk.keys[gone], "what?")
    runs = desk.executing(*some_jobs(2))
    assert desk.settle([Settled(runs[0], of_kind(RED)), Settled(runs[1], of_kind(BLUE))]) == [1, 1]
    desk.do(verbs.dead.forget, [entry for entry, _ in desk.entries("dlq")][-2:])
    desk.index(4)
    found = index(desk)
    assert found.is_complete
    assert {one._replace(newest="") for one in found.groups} == {
        one._replace(newest="") for one in good.groups
    }
    assert (group(desk, RED).first, order(group(desk, RED).newest) >= order(last)) == (first, True)


DAMAGED_LOOKS = ["what?", "5", "[]", "null", "{}", '{"first":7}', '{"first":"yesterday"}']


@pytest.mark.parametrize(
    ("key", "value"),
    [*(("dlq:f", look) for look in DAMAGED_LOOKS), *(("dlq:l", entry) for entry in ("what?", "", "5-"))],
)
def test_a_damaged_value_of_one_group_stops_no_other(
    desk: Desk, before: Before, key: str, value: str
) -> None:
    """While it could not be read, the first or the newest job of its group was unknown."""
    other = died(FAILURE._replace(error_type="KeyError"), 1, RESULT_MS)
    (first, _) = die(desk, [DERIVED, RED])
    desk.index()
    die_before(desk, before, "ab")
    die_before(desk, before, "c", other)
    desk.redis.hset(desk.keys[key], DERIVED, value)
    desk.index()
    derived = fingerprint_of(FAILURE.reason, "app:welcome", "KeyError")
    assert groups(desk) == {DERIVED: 3, RED: 1, derived: 1}
    newest = [entry for entry, _ in desk.entries("dlq")][-2]
    assert (group(desk, DERIVED).first, group(desk, DERIVED).newest) == (first, newest)
    assert index(desk).is_complete


@pytest.mark.parametrize("cursor", ["what?", "", "5", f"{10**30}-0", f"5-{10**30}"])
def test_an_index_whose_cursor_is_damaged_is_made_anew(desk: Desk, before: Before, cursor: str) -> None:
    die(desk, [RED])
    desk.index()
    desk.redis.hset(desk.keys["dlq:g"], "@", cursor)
    die_before(desk, before, "ab")
    desk.index()
    assert groups(desk) == {DERIVED: 2, RED: 1}
    assert index(desk).is_complete


def test_a_damaged_cursor_is_found_although_the_numbers_add_up(desk: Desk, before: Before) -> None:
    entries = die(desk, [RED, BLUE])
    desk.index()
    desk.redis.hset(desk.keys["dlq:g"], "@", f"{10**30}-0")
    before.remove("forget", entries[:1])
    die_before(desk, before, "a")
    assert index(desk).is_complete
    desk.index()
    assert groups(desk) == {BLUE: 1, DERIVED: 1}


def test_an_index_of_a_wrong_type_is_made_anew_although_it_takes_several_pages(desk: Desk) -> None:
    die(desk, [RED, BLUE] * 5)
    desk.redis.delete(*(desk.keys[name] for name in KEYS))
    desk.redis.set(desk.keys["dlq:g"], "what?")
    desk.index(4)
    assert groups(desk) == {RED: 5, BLUE: 5}


@pytest.mark.parametrize("number", ["what?", "7" * 30, ""])
def test_a_damaged_number_is_counted_anew(desk: Desk, number: str) -> None:
    die(desk, [RED, BLUE, RED])
    desk.redis.hset(desk.keys["dlq:g"], RED, number)
    desk.index()
    assert groups(desk) == {RED: 2, BLUE: 1}


def test_an_index_that_shows_another_group_than_it_counts_is_made_anew(desk: Desk, before: Before) -> None:
    die(desk, [RED])
    for name in ("dlq:f", "dlq:l"):
        shown: Any = desk.redis.hget(desk.keys[name], RED)
        desk.redis.hset(desk.keys[name], DERIVED, shown)
        desk.redis.hdel(desk.keys[name], RED)
    die_before(desk, before, map(str, range(9)))
    desk.index(4)
    assert groups(desk) == {RED: 1, DERIVED: 9}


@pytest.mark.parametrize(("name", "damaged"), [("dlq:l", "what?"), ("dlq:f", '{"first":7}'), ("dlq:f", "{}")])
def test_what_the_index_shows_of_a_group_is_written_anew_when_it_names_no_entry(
    desk: Desk, before: Before, name: str, damaged: str
) -> None:
    die_before(desk, before, "a")
    newest = die(desk, [DERIVED])[0]
    oldest = desk.entries("dlq")[0][0]
    die_before(desk, before, "b")
    desk.redis.hset(desk.keys[name], DERIVED, damaged)
    assert desk.index() == 3
    assert (group(desk, DERIVED).jobs, group(desk, DERIVED).first) == (3, oldest)
    assert order(group(desk, DERIVED).newest) > order(newest)


@pytest.mark.audit(skip="what the index shows of a group is damaged by hand")
def test_a_group_whose_first_job_cannot_be_read_is_counted_all_the_same(desk: Desk, before: Before) -> None:
    die_before(desk, before, "a")
    die(desk, [DERIVED])
    desk.redis.hset(desk.keys["dlq:f"], DERIVED, "what?")
    desk.index()
    assert groups(desk) == {DERIVED: 2}


def test_an_entry_that_was_deleted_by_hand_is_found(desk: Desk) -> None:
    entries = die(desk, [RED, BLUE, RED])
    desk.index()
    job = desk.waiting("dlq")[0]
    desk.redis.xdel(desk.keys["dlq"], entries[0])
    desk.redis.delete(desk.keys.record(job), desk.keys.result(job))
    desk.index()
    assert groups(desk) == {BLUE: 1, RED: 1}


def test_a_dead_letter_queue_that_was_deleted_by_hand_leaves_no_index(desk: Desk) -> None:
    die(desk, [RED, BLUE])
    jobs = desk.waiting("dlq")
    desk.redis.delete(desk.keys["dlq"], *map(desk.keys.record, jobs), *map(desk.keys.result, jobs))
    assert desk.index() == 0
    assert keys_of_index(desk) == []


def test_while_the_index_is_made_anew_what_dies_and_goes_is_counted_once(desk: Desk) -> None:
    entries = die(desk, [RED, BLUE] * 5)
    desk.redis.delete(desk.keys["dlq:g"])
    assert desk.do(verbs.dead.index, 4).anew
    assert desk.do(verbs.dead.index, 4) == (4, True, False)
    *_, gone = die(desk, [RED, "2222beef", "3333beef"], prefix="new")
    assert desk.do(verbs.dead.forget, [gone]) == 1
    assert "3333beef" not in groups(desk)
    assert desk.do(verbs.dead.forget, [entries[0], entries[9]]) == 2
    assert desk.do(verbs.dead.replay, [entries[3], entries[8]]) == [1, 1]
    desk.index(4)
    assert groups(desk) == {RED: 4, BLUE: 3, "2222beef": 1}


def test_a_group_is_not_new_while_the_index_is_made_anew(desk: Desk) -> None:
    die(desk, [RED])
    desk.redis.delete(desk.keys["dlq:g"])
    desk.do(verbs.dead.index, 1)
    assert settle(desk, desk.executing(a_job("new")), [RED]) == [1]
    desk.index()


def test_when_the_index_was_made_anew_a_group_is_new_again(desk: Desk) -> None:
    """Also when the last page is full."""
    die(desk, [RED] * 4)
    desk.redis.delete(desk.keys["dlq:g"])
    desk.index(2)
    assert settle(desk, desk.executing(a_job("new")), [BLUE]) == [3]


def test_everything_can_be_forgotten_while_the_index_is_made_anew(desk: Desk) -> None:
    entries = die(desk, [RED] * 4)
    desk.redis.delete(desk.keys["dlq:g"])
    desk.do(verbs.dead.index, 2)
    desk.do(verbs.dead.index, 2)
    desk.do(verbs.dead.forget, entries[:2])
    assert (groups(desk), problems(desk.redis)) == ({}, [])
    desk.do(verbs.dead.forget, entries[2:])
    desk.index()
    assert keys_of_index(desk) == []


@pytest.mark.audit(skip="the entries name no job")
def test_damaged_entries_are_counted_and_go(desk: Desk) -> None:
    die(desk, [RED])
    desk.stray("dlq", what="this")
    desk.stray("dlq", i="9", f="not hex")
    desk.stray("dlq", i="8", f=BLUE)
    desk.index()
    assert sum(groups(desk).values()) == 4
    assert groups(desk)[BLUE] == 1
    assert desk.gc(max_len=0) == (4, 0)
    assert keys_of_index(desk) == []


def test_an_index_that_is_right_is_not_written(desk: Desk) -> None:
    die(desk, [RED, BLUE])
    desk.index()
    seen = desk.everything()
    assert desk.do(verbs.dead.index, 10) == (0, False, False)
    assert desk.everything() == seen


def test_an_index_that_cannot_be_written_stops_no_job(desk: Desk, server: Server) -> None:
    (run,) = desk.executing()
    with desk.as_user(server, "hincrby"):
        assert desk.finish([run], of_kind(RED)) == [1]
    assert (desk.record()["s"], groups(desk)) == ("D", {})
    desk.index()
    assert groups(desk) == {RED: 1}


def test_over_maxmemory_the_index_is_kept(desk: Desk, server: Server) -> None:
    runs = desk.executing(*some_jobs(2))
    with server.configured(maxmemory="1"):
        settle(desk, runs, [RED, BLUE])
        desk.do(verbs.dead.forget, [desk.entries("dlq")[0][0]])
        assert groups(desk) == {BLUE: 1}
        desk.redis.delete(desk.keys["dlq:l"])
        desk.index()
    assert groups(desk) == {BLUE: 1}


def test_reading_the_index_writes_nothing(desk: Desk, server: Server) -> None:
    die(desk, [RED])
    with desk.as_user(server, "hset", "hincrby", "hdel", "del"):
        assert groups(desk) == {RED: 1}


def test_an_index_that_cannot_be_read_is_empty(desk: Desk) -> None:
    die(desk, [RED])
    for name in KEYS:
        desk.redis.delete(desk.keys[name])
        desk.redis.set(desk.keys[name], "what?")
    assert index(desk) == GroupIndex("mail", 1, [], "0-0", "0-0")
    desk.index()
    assert groups(desk) == {RED: 1}


# Many


def test_the_index_equals_a_recount_after_many_deaths_replays_and_removals(
    desk: Desk, before: Before
) -> None:
    """2,000 deaths of 200 kinds, with an executor of the release before beside."""
    kinds = many(200)
    for turn in range(10):
        die(desk, [kinds[(turn * 7 + number) % 200] for number in range(150)], prefix=f"{turn}.")
        die_before(desk, before, [f"{turn}.old.{number}" for number in range(50)])
        desk.do(verbs.dead.index, 40)
        entries = [entry for entry, _ in desk.entries("dlq")]
        desk.do(verbs.dead.replay, entries[turn::9])
        desk.do(verbs.dead.forget, entries[turn + 1 :: 9])
        desk.recover(max_deliveries=1)
        desk.cancel(*desk.waiting())
        desk.gc(max_len=max(0, 900 - turn * 20), limit=30)
        assert problems(desk.redis) == []
    desk.index()
    assert index(desk).is_complete
    assert len(groups(desk)) > 100
