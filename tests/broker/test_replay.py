"""replay: puts dead jobs back, as the same jobs with a fresh budget."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import LANES
from fennelq.broker.trouble import ReplyError, Trouble, classify
from fennelq.broker.verbs.dead import Change
from fennelq.model.outcome import Outcome, not_known, retried
from tests.broker.before import Before
from tests.broker.desk import DEAD, DONE, FAILURE, LIFETIMES, Desk, a_job, about, some_jobs
from tests.broker.limited import in_line
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


@pytest.mark.audit(unfinished=True)
def test_a_damaged_number_of_replays_loses_no_job_and_stops_no_other(desk: Desk) -> None:
    entries = desk.dead(*some_jobs(3))
    desk.redis.hset(desk.keys.record("2"), "R", "what?")
    assert desk.do(verbs.dead.replay, entries) == [1, 1, 1]
    assert desk.waiting() == ["1", "2", "3"]
    assert [desk.record(key)["R"] for key in "123"] == ["1", "1", "1"]
    assert desk.entries("dlq") == []


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


def test_a_job_of_an_unknown_task_waits_again_for_a_worker_that_knows_it(desk: Desk) -> None:
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


def test_an_expired_job_that_no_worker_could_run_runs_when_it_is_replayed(desk: Desk) -> None:
    desk.enqueue(a_job(expires_ms=DAY))
    desk.redis.hset(desk.keys.record("1"), "U", desk.now() - LIFETIMES.patience_ms)
    desk.finish(desk.take(), UNKNOWN)
    desk.redis.hset(desk.keys.record("1"), "E", 1)
    desk.do(verbs.dead.replay, [desk.entries("dlq")[0][0]])
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
        desk.redis.set(desk.keys.idempotency("app:welcome:42"), "missing", px=DAY)
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


@pytest.mark.parametrize(
    ("held", "state", "answer"),
    [
        ("<", "waits", -1),
        ("<", "runs", 1),
        (">", "runs", -1),
        (">", "has ended", 1),
        ("^", "waits", -1),
        ("^", "runs", -1),
        ("^", "has ended", 1),
    ],
)
def test_a_replay_waits_until_a_later_call_with_its_key_has_given_it_up(
    desk: Desk, held: str, state: str, answer: int
) -> None:
    """Of the kind `^`, also until that call has ended: an older call must not run after a newer one."""
    (entry,) = desk.dead(a_job("1", idempotency="app:welcome:42", dedupe=held))
    desk.enqueue(a_job("2", idempotency="app:welcome:42", dedupe=held))
    taken = desk.take() if state != "waits" else []
    if state == "has ended":
        desk.finish(taken)
    assert desk.do(verbs.dead.replayable, [entry]) == [answer]
    assert desk.do(verbs.dead.replay, [entry]) == [answer]
    desk.finish([*taken, *desk.take()])
    desk.do(verbs.dead.forget, [entry])


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


def test_over_maxmemory_nothing_is_replayed_and_the_caller_gets_an_error(desk: Desk, server: Server) -> None:
    (entry,) = desk.dead(a_job(idempotency="app:welcome:42"))
    before = desk.everything()
    with server.configured(maxmemory="1"), pytest.raises(ReplyError) as refused:
        desk.do(verbs.dead.replay, [entry])
    assert classify(refused.value) is Trouble.CAPACITY
    assert desk.everything() == before
    assert desk.do(verbs.dead.replay, [entry]) == [1]


# New arguments

GATE_17, GATE_18 = "c1:account/17", "c1:account/18"
OTHER = Change(b"[[43],{}]", before="by anna@web-1, with new arguments; before: [[42],{}]")


def change(desk: Desk, entry: str, change: Change) -> list[int]:
    """Replay one entry with this change."""
    return desk.do(verbs.dead.replay, [entry], {entry: change})


def test_a_job_runs_with_its_new_arguments_and_its_history_keeps_the_old_ones(desk: Desk) -> None:
    (entry,) = desk.dead(a_job(options=b'{"r":3}'))
    assert change(desk, entry, OTHER) == [1]
    assert [(line["what"], line["more"]) for line in desk.history()] == [("replayed", OTHER.before)]
    (delivery,) = desk.take()
    assert (delivery.args, delivery.options) == (OTHER.arguments, b'{"r":3}')
    assert desk.finish([delivery]) == [1]


def test_only_the_entries_that_change_get_other_arguments(desk: Desk) -> None:
    first, second, third = desk.dead(*some_jobs(3))
    assert desk.do(verbs.dead.replay, [first, second, third], {second: OTHER}) == [1, 1, 1]
    assert [desk.record(key)["a"] for key in "123"] == ["[42]", "[[43],{}]", "[42]"]
    for key in "123":
        assert desk.record(key).keys().isdisjoint({"g", "v", "before"})
    assert [[line.get("more") for line in desk.history(key)] for key in "13"] == [[None], [None]]
    desk.finish(desk.take())


def test_without_new_gates_and_a_new_key_both_stay(desk: Desk) -> None:
    (entry,) = desk.dead(a_job(idempotency="app:welcome:42", gates=GATE_17))
    assert change(desk, entry, OTHER) == [1]
    assert (desk.record()["g"], desk.record()["k"]) == (GATE_17, "=app:welcome:42")
    assert desk.holder("app:welcome:42") == "1"
    desk.finish(desk.take())


def test_a_job_waits_for_the_gates_of_its_new_arguments(desk: Desk) -> None:
    (entry,) = desk.dead(a_job("1", gates=GATE_17))
    (running,) = desk.executing(a_job("2", gates=GATE_18))
    assert change(desk, entry, OTHER._replace(gates=GATE_18)) == [1]
    assert desk.record()["g"] == GATE_18
    assert in_line(desk, "c:account/18") == ["1"]
    assert desk.finish([running]) == [1]
    desk.finish(desk.take())
    assert desk.record()["s"] == "S"


def test_a_job_does_not_wait_for_the_gates_of_its_old_arguments(desk: Desk) -> None:
    (entry,) = desk.dead(a_job("1", gates=GATE_17))
    running = desk.executing(a_job("2", gates=GATE_17))
    assert change(desk, entry, OTHER._replace(gates=GATE_18)) == [1]
    taken = desk.take()
    assert [one.key for one in taken] == ["1"]
    desk.finish([*running, *taken])


def test_a_slot_that_a_worker_of_an_earlier_version_has_kept_is_given_back(desk: Desk) -> None:
    (entry,) = desk.dead(a_job("1", gates=GATE_17))
    desk.redis.zadd(desk.keys.slots("c:account/17"), {"1": 0})
    desk.enqueue(a_job("2", gates=GATE_17))
    assert in_line(desk) == ["2"]
    assert change(desk, entry, OTHER._replace(gates=GATE_18)) == [1]
    taken = desk.take()
    assert sorted(one.key for one in taken) == ["1", "2"]
    desk.finish(taken)
    assert desk.keys_of_limits() == []


@pytest.mark.parametrize(("before", "after", "version"), [("", GATE_18, "2"), (GATE_17, "", "2")])
def test_gates_come_and_go_with_the_arguments(desk: Desk, before: str, after: str, version: str) -> None:
    (entry,) = desk.dead(a_job(gates=before))
    assert change(desk, entry, OTHER._replace(gates=after)) == [1]
    assert (desk.record().get("g"), desk.record()["v"]) == (after or None, version)
    desk.finish(desk.take())


def test_a_later_wire_version_is_not_lowered(desk: Desk) -> None:
    (entry,) = desk.dead(a_job(gates=GATE_17))
    desk.redis.hset(desk.keys.record("1"), "v", 7)
    change(desk, entry, OTHER._replace(gates=GATE_18))
    assert desk.record()["v"] == "7"
    desk.redis.hset(desk.keys.record("1"), "v", 2)
    desk.finish(desk.take())


@pytest.mark.parametrize("held", ["", "<", ">", "^"])
def test_a_job_moves_to_the_key_of_its_new_arguments(desk: Desk, held: str) -> None:
    (entry,) = desk.dead(a_job(idempotency="app:welcome:42", dedupe=held))
    letter = held or "="
    assert change(desk, entry, OTHER._replace(idempotency=f"{letter}app:welcome:43")) == [1]
    assert (desk.holder("app:welcome:42"), desk.holder("app:welcome:43")) == (None, "1")
    assert desk.ttl(desk.keys.idempotency("app:welcome:43")) == -1
    assert desk.enqueue(a_job("2", idempotency="app:welcome:42")) == [1]
    assert desk.enqueue(a_job("3", idempotency="app:welcome:43")) == [b"1"]
    desk.finish(desk.take())


def test_a_key_with_a_window_moves_with_what_is_left_of_it(desk: Desk) -> None:
    (entry,) = desk.dead(a_job(idempotency="app:welcome:42", window_ms=DAY))
    assert change(desk, entry, OTHER._replace(idempotency="~app:welcome:43")) == [1]
    assert (desk.holder("app:welcome:42"), desk.holder("app:welcome:43")) == (None, "1")
    assert desk.ttl(desk.keys.idempotency("app:welcome:43")) == about(DAY)
    desk.finish(desk.take())


def test_a_key_that_was_held_for_ever_has_no_window_to_move(desk: Desk) -> None:
    (entry,) = desk.dead(a_job(idempotency="app:welcome:42"))
    assert change(desk, entry, OTHER._replace(idempotency="~app:welcome:43")) == [1]
    assert (desk.holder("app:welcome:42"), desk.holder("app:welcome:43")) == (None, None)
    desk.finish(desk.take())


@pytest.mark.parametrize("changes", [False, True])
def test_a_key_with_a_window_that_another_job_has_by_now_stops_no_replay(desk: Desk, changes: bool) -> None:
    """The job does not take it again."""
    (entry,) = desk.dead(a_job("1", idempotency="app:welcome:42", window_ms=DAY))
    desk.redis.delete(desk.keys.idempotency("app:welcome:42"))
    desk.enqueue(a_job("2", idempotency="app:welcome:42", window_ms=DAY))
    given = {entry: OTHER._replace(idempotency="~app:welcome:42")} if changes else {}
    assert desk.do(verbs.dead.replayable, [entry], given) == [1]
    assert desk.do(verbs.dead.replay, [entry], given) == [1]
    assert desk.holder("app:welcome:42") == "2"
    desk.finish(desk.take())


def test_a_job_without_a_key_gets_none_with_a_window(desk: Desk) -> None:
    """So it does not matter that another job has it."""
    (entry,) = desk.dead(a_job("1"))
    desk.enqueue(a_job("2", idempotency="app:welcome:42", window_ms=DAY))
    given = {entry: OTHER._replace(idempotency="~app:welcome:42")}
    assert desk.do(verbs.dead.replayable, [entry], given) == [1]
    assert desk.do(verbs.dead.replay, [entry], given) == [1]
    assert desk.holder("app:welcome:42") == "2"
    desk.finish(desk.take())


def test_a_key_whose_window_is_over_does_not_move(desk: Desk) -> None:
    (entry,) = desk.dead(a_job(idempotency="app:welcome:42", window_ms=DAY))
    desk.redis.delete(desk.keys.idempotency("app:welcome:42"))
    assert change(desk, entry, OTHER._replace(idempotency="~app:welcome:43")) == [1]
    assert desk.holder("app:welcome:43") is None
    assert desk.record()["k"] == "~app:welcome:43"
    desk.finish(desk.take())


def test_the_old_key_of_another_job_stays(desk: Desk) -> None:
    (entry,) = desk.dead(a_job("1", idempotency="app:welcome:42", dedupe=">"))
    desk.enqueue(a_job("2", idempotency="app:welcome:42", dedupe=">"))
    assert change(desk, entry, OTHER._replace(idempotency=">app:welcome:43")) == [1]
    assert (desk.holder("app:welcome:42"), desk.holder("app:welcome:43")) == ("2", "1")
    desk.finish(desk.take())


@pytest.mark.parametrize(("held", "window"), [("", 0), ("~", DAY)])
def test_a_job_whose_new_key_another_one_holds_stays_dead_and_unchanged(
    desk: Desk, held: str, window: int
) -> None:
    (entry,) = desk.dead(a_job("1", idempotency="app:welcome:42", window_ms=window))
    desk.enqueue(a_job("2", idempotency="app:welcome:43"))
    before = desk.everything()
    moved = OTHER._replace(idempotency=f"{held or '='}app:welcome:43", gates=GATE_18)
    assert desk.do(verbs.dead.replayable, [entry], {entry: moved}) == [-1]
    assert change(desk, entry, moved) == [-1]
    assert desk.everything() == before
    desk.finish(desk.take())


def test_with_arguments_of_its_own_a_repeated_call_still_finds_its_job(desk: Desk) -> None:
    call = a_job("1", nonce="n1")
    (entry,) = desk.dead(call)
    change(desk, entry, OTHER)
    assert desk.enqueue(call) == [0]
    desk.finish(desk.take())


def test_a_worker_of_an_earlier_version_runs_a_changed_job(desk: Desk) -> None:
    before = Before(desk, "before_groups.json", {})
    desk.enqueue(a_job(idempotency="app:welcome:42", gates=GATE_17))
    before.finish(before.fetch(), DEAD)
    ((entry, _),) = desk.entries("dlq")
    moved = OTHER._replace(gates=GATE_18, idempotency="=app:welcome:43")
    assert desk.do(verbs.dead.replayable, [entry], {entry: moved}) == [1]
    assert change(desk, entry, moved) == [1]
    (delivery,) = before.fetch()
    assert delivery.args == OTHER.arguments
    assert before.finish([delivery], DONE) == [1]
    assert desk.keys_of_limits() == []
    assert desk.holder("app:welcome:43") == "1"


def test_what_a_worker_of_an_earlier_version_has_replayed_is_gone(desk: Desk) -> None:
    before = Before(desk, "before_groups.json", {})
    (entry,) = desk.dead()
    before.remove("replay", [entry])
    assert change(desk, entry, OTHER) == [0]
    (delivery,) = desk.take()
    assert delivery.args == b"[42]"
    desk.finish([delivery])
    desk.do(verbs.dead.index, 10)
    desk.index()
