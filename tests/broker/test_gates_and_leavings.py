"""Gates decide whether a job starts; leavings act when a run is over. Here some are added to those that there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import pytest

from fennelq.broker import lua_files, scripts, verbs
from fennelq.model.outcome import Outcome, retried, snoozed, succeeded
from tests.broker.desk import DEAD, DONE, FAILURE, LIFETIMES, Desk, a_job, shown, some_jobs

Add = Callable[..., None]

PROBE = """\
-- probe: writes down each case that it acts in.
--@every job
--@when ended, later, again
redis.call('RPUSH', prefix .. 'probe', how .. ' ' .. job .. ' ' .. tostring(what))
"""
FAILING = "--@every job\n--@when ended, later, again\nerror('no')\n"
SUCCESSOR = """\
-- successor: hands the next job over to its queue.
--@every job
--@include outbox, announce
--@when ended
hand_over('post:' .. job, more)
tell_one('out')
"""
EVERY_SECOND = """\
-- second: puts off every second job.
--@include refuse
local asked = 0
function made.is_second()
  asked = asked + 1
  return asked % 2 == 0
end
--@check
if gates().is_second() then
  return gates().refuse(lane, entry, job, 'Z', '', '+60000')
end
"""


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """`add("leaving", "probe", text)`: one file more, and its name at the end of the order, or `after` only these."""

    def added(folder: str, name: str, text: str, *, after: Sequence[str] = ()) -> None:
        listing, directive = {"leaving": ("lib/run_over", "leavings"), "gates": ("fetch", "gates")}[folder]

        read = lua_files.text_of

        def changed(path: str) -> str:
            if path == f"{folder}/{name}.lua":
                return text
            if path != f"{listing}.lua":
                return read(path)
            order = f"--@{directive} {', '.join([*after, name])}" if after else rf"\g<0>, {name}"
            return re.sub(rf"^--@{directive} .+", order, read(path), flags=re.MULTILINE)

        monkeypatch.setattr(lua_files, "text_of", changed)
        forget_files()

    yield added
    monkeypatch.undo()
    forget_files()


def forget_files() -> None:
    lua_files.lua_file.cache_clear()
    scripts.script.cache_clear()


@pytest.fixture
def probed(desk: Desk, add: Add) -> Desk:
    """A queue with a leaving that writes down how each run was over."""
    add("leaving", "probe", PROBE)
    return desk


def over(desk: Desk) -> list[str]:
    """What the probe has written down, and nothing of it any more."""
    probe = f"{desk.keys.prefix}probe"
    found = cast("list[bytes]", desk.redis.lrange(probe, 0, -1))
    desk.redis.delete(probe)
    return [shown(line) for line in found]


def of_marked_jobs() -> list[str]:
    """The leavings that do not act on every job."""
    leavings = lua_files.lua_file("lib/run_over").words("leavings")
    return [name for name in leavings if not lua_files.lua_file(f"leaving/{name}").words("every")]


@pytest.mark.parametrize(
    ("outcome", "how"),
    [
        (DONE, "ended 1 S"),
        (succeeded(b"", 0), "ended 1 N"),
        (DEAD, "ended 1 D"),
        (retried(1, FAILURE), "later 1 failed"),
        (snoozed(1), "later 1 nil"),
    ],
)
def test_a_run_that_finishes_is_over_once(probed: Desk, outcome: Outcome, how: str) -> None:
    probed.finish(probed.executing(), outcome)
    assert over(probed) == [how]


def test_a_run_that_is_handed_back_or_recovered_goes_on_again(probed: Desk) -> None:
    probed.release(probed.executing())
    assert over(probed) == ["again 1 stopped"]
    probed.take()
    probed.recover()
    assert over(probed) == ["again 1 recovered"]


def test_a_job_of_a_worker_that_is_too_old_goes_on_later_until_it_is_dead(probed: Desk) -> None:
    probed.enqueue(a_job())
    probed.redis.hset(probed.keys.record("1"), "v", "3")
    probed.take()
    assert over(probed) == ["later 1 nil"]


def test_what_ends_without_a_run_has_ended(probed: Desk) -> None:
    probed.enqueue(*some_jobs(3))
    probed.cancel("1")
    probed.redis.hset(probed.keys.record("2"), "E", "1")
    probed.finish(probed.take(), snoozed(1))
    assert over(probed) == ["ended 1 K", "ended 2 K", "later 3 nil"]
    probed.do(verbs.queues.purge, LIFETIMES, 100)
    assert over(probed) == ["ended 3 K"]


def test_a_dead_job_that_is_replayed_is_there_again(probed: Desk) -> None:
    (entry,) = probed.dead()
    over(probed)
    probed.do(verbs.dead.replay, [entry])
    assert over(probed) == ["again 1 replayed"]


def test_a_job_that_is_given_up_has_ended(probed: Desk) -> None:
    probed.executing(a_job(max_deliveries=1))
    probed.recover()
    assert over(probed) == ["ended 1 D"]


@pytest.mark.audit(leavings_fail=True)
def test_a_leaving_that_fails_undoes_nothing_and_stops_no_other(desk: Desk, add: Add) -> None:
    add("leaving", "failing", FAILING)
    add("leaving", "probe", PROBE)
    desk.finish(desk.executing())
    assert (desk.record()["s"], desk.result()) == ("S", ['{"ok":42}'])
    assert over(desk) == ["ended 1 S"]
    assert desk.stats()["leaving_failed"] == 1
    desk.release(desk.executing(a_job("2")))
    assert (desk.record("2")["s"], over(desk)) == ("Q", ["again 2 stopped"])
    assert desk.stats()["leaving_failed"] == 2


def test_without_such_a_leaving_a_plain_job_has_none(desk: Desk, add: Add) -> None:
    add("leaving", "probe", PROBE.replace("--@every job\n", ""), after=of_marked_jobs())
    desk.finish(desk.executing())
    assert over(desk) == []
    (delivery,) = desk.executing(a_job("2", idempotency="k"))
    desk.finish([delivery])
    assert over(desk) == ["ended 2 S"]


def test_a_gate_refuses_every_second_job(desk: Desk, add: Add) -> None:
    add("gates", "second", EVERY_SECOND)
    desk.enqueue(*some_jobs(4))
    deliveries = desk.take()
    assert [delivery.key for delivery in deliveries] == ["1", "3"]
    desk.finish(deliveries)
    assert list(desk.due()) == ["2", "4"]


def test_gates_are_asked_in_their_order(desk: Desk, add: Add) -> None:
    """A job that the first ones refuse is not met by the last one."""
    add("gates", "second", EVERY_SECOND)
    desk.enqueue(*some_jobs(3))
    desk.redis.hset(desk.keys.record("1"), "E", "1")
    deliveries = desk.take()
    assert [delivery.key for delivery in deliveries] == ["2"]
    desk.finish(deliveries)


def test_a_script_hands_a_job_over_through_the_outbox_of_its_own_slot(desk: Desk, add: Add) -> None:
    add("leaving", "successor", SUCCESSOR)
    held = desk.executing()
    desk.sleep("anna")
    with desk.subscribed("anna") as heard:
        desk.finish(held)
        assert heard() == [("anna", "out")]
    assert desk.sleepers() == {"anna"}
    assert desk.redis.hgetall(desk.keys["out"]) == {b"post:1": b'{"ok":42}'}
    desk.redis.delete(desk.keys["out"])
