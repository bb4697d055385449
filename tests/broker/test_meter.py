"""meter: adds the times that an executor has counted, each report once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fennelq.broker import verbs
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verbs.times import Report, minute_of
from fennelq.model.times import BUCKETS
from tests.broker.desk import Desk
from tests.kit.clock import ServerClock
from tests.kit.server import Server

pytestmark = pytest.mark.both_servers

WINDOW = 600_000
NOW = 1_700_000_400_000
"""The beginning of a window."""
KEPT = 86_400_000


class Metered(Desk):
    """A queue, on a server whose clock stands."""

    def __init__(self, server: Server, clock: ServerClock) -> None:
        super().__init__(server)
        self.clock = clock
        clock.stop_at(NOW)

    def report(self, number: int = 1, *, executor: str = "anna", life: str = "a1", **counts: int) -> bool:
        """`report(welcome_r3=5)`: five runs of `app:welcome` in bucket 3."""
        named = {f"app:{field.replace('_', '|')}": count for field, count in counts.items()}
        return self.do(verbs.times.meter, Report(executor, life, number, named), KEPT)

    def counted(self, at_ms: int = NOW) -> dict[str, int]:
        """What the window has."""
        fields = cast("dict[bytes, bytes]", self.redis.hgetall(self.keys.times(at_ms // WINDOW)))
        return {name.decode().removeprefix("app:"): int(count) for name, count in fields.items()}


@pytest.fixture
def metered(server: Server, server_clock: ServerClock) -> Any:
    desk = Metered(server, server_clock)
    yield desk
    desk.close()


def test_the_reports_of_all_executors_are_added(metered: Metered) -> None:
    assert metered.report(1, welcome_r3=5, welcome_w0=2)
    assert metered.report(1, executor="berta", welcome_r3=1, resize_r18=1)
    assert metered.report(2, welcome_w0=1)
    assert metered.counted() == {"welcome|r3": 6, "welcome|w0": 3, "resize|r18": 1}


def test_each_ten_minutes_have_a_hash_that_expires(metered: Metered) -> None:
    metered.clock.pass_by(WINDOW - 1)
    metered.report(1, welcome_r3=5)
    metered.clock.pass_by(1)
    metered.report(2, welcome_r3=7)
    assert metered.counted(NOW) == {"welcome|r3": 5}
    assert metered.counted(NOW + WINDOW) == {"welcome|r3": 7}
    for window in (NOW // WINDOW, NOW // WINDOW + 1):
        assert KEPT - 5000 < metered.redis.pttl(metered.keys.times(window)) <= KEPT
    assert metered.redis.pttl(f"{metered.keys.prefix}metered:anna") <= 3_600_000
    names = {f"m:{NOW // WINDOW}", f"m:{NOW // WINDOW + 1}", "metered:anna"}
    assert metered.everything().keys() - {"kit:clock"} == {f"{metered.keys.prefix}{name}" for name in names}


def test_a_report_whose_reply_was_lost_is_added_once_also_in_the_next_ten_minutes(metered: Metered) -> None:
    assert metered.report(1, welcome_r3=5)
    assert not metered.report(1, welcome_r3=5)
    metered.clock.pass_by(WINDOW)
    assert not metered.report(1, welcome_r3=5)
    assert (metered.counted(NOW), metered.counted(NOW + WINDOW)) == ({"welcome|r3": 5}, {})


def test_a_report_that_arrives_after_a_later_one_is_not_added_again(metered: Metered) -> None:
    assert [metered.report(number, welcome_r3=1) for number in (8, 9, 8, 10)] == [True, True, False, True]
    assert metered.counted() == {"welcome|r3": 3}


def test_an_executor_that_has_the_name_of_an_earlier_one_begins_anew(metered: Metered) -> None:
    assert metered.report(7, welcome_r3=1)
    assert metered.report(1, life="b2", welcome_r3=1)
    assert metered.counted() == {"welcome|r3": 2}


def test_a_key_of_a_wrong_type_is_an_error_with_its_name_and_nothing_is_written(metered: Metered) -> None:
    key = metered.keys.times(NOW // WINDOW)
    metered.redis.set(key, "mine", px=60_000)
    before = metered.everything()
    with pytest.raises(ReplyError, match=f"WRONGTYPE {key} is not a hash: rename or delete it"):
        metered.report(1, welcome_r3=5)
    assert metered.everything() == before
    metered.redis.delete(key)
    assert metered.report(1, welcome_r3=5)
    assert metered.counted() == {"welcome|r3": 5}


def test_what_a_person_has_written_into_its_keys_stops_no_report(metered: Metered) -> None:
    metered.redis.hset(metered.keys.times(NOW // WINDOW), mapping={"app:welcome|r3": "many"})
    metered.redis.rpush(f"{metered.keys.prefix}metered:anna", "nonsense")
    assert metered.report(1, welcome_r3=5, welcome_r4=1)
    assert not metered.report(1, welcome_r3=5)
    assert metered.counted() == {"welcome|r3": 5, "welcome|r4": 1}


def test_over_maxmemory_nothing_is_written(metered: Metered, server: Server) -> None:
    with server.configured(maxmemory="1"), pytest.raises(ReplyError, match="OOM"):
        metered.report(1, welcome_r3=5)
    assert metered.counted() == {}
    assert metered.report(1, welcome_r3=5)


def test_a_hash_is_bounded_and_further_tasks_are_counted_together(metered: Metered) -> None:
    key = metered.keys.times(NOW // WINDOW)
    metered.redis.hset(key, mapping={f"app:{n}|r3": 1 for n in range(19_999)})
    assert metered.report(1, a_r3=2, b_r3=3, c_w18=4)
    assert metered.report(2, a_r3=10, d_r3=5)
    metered.redis.hdel(key, *(f"app:{n}|r3" for n in range(19_999)))
    assert metered.counted() == {"a|r3": 12, "other|r3": 8, "other|w18": 4}


def test_times_are_read_by_task_and_what_a_later_version_counts_is_ignored(metered: Metered) -> None:
    metered.report(1, welcome_r3=5, welcome_w18=1)
    key = metered.keys.times(NOW // WINDOW)
    others = {"app:welcome|S": 3, "app:welcome|r19": 1, "app:welcome|r4": "x", "app:welcome|x3": 1, "r3": 1}
    metered.redis.hset(key, mapping=cast("Any", {**others, "app:welcome|D": "x", "app:welcome|Q": 1}))
    run, wait = [0] * BUCKETS, [0] * BUCKETS
    run[3], wait[18] = 5, 1
    read = metered.do(verbs.times.times, NOW + WINDOW - 1)
    assert {what: counts for what, counts in read.durations.items() if what[0]} == {
        ("app:welcome", "r"): run,
        ("app:welcome", "w"): wait,
    }
    assert read.ends == {"app:welcome": {"S": 3}}
    assert metered.do(verbs.times.times, NOW + WINDOW) == ({}, {})


# Hours

HOUR = 3_600_000


def minutes(metered: Metered, at_ms: int = NOW) -> dict[int, dict[str, int]]:
    """What the hour has."""
    return metered.do(verbs.times.hour, at_ms)


def report_minutes(metered: Metered, number: int, counts: dict[tuple[int, str], int]) -> bool:
    """Runs by the minute since the epoch and the letter of their outcome."""
    named = {minute_of(minute, letter): count for (minute, letter), count in counts.items()}
    return metered.do(verbs.times.meter, Report("anna", "a1", number, named), KEPT)


def test_the_runs_of_each_minute_are_counted_by_outcome_in_a_hash_per_hour_that_expires(
    metered: Metered,
) -> None:
    this = NOW // 60_000
    hour = NOW // HOUR
    assert report_minutes(metered, 1, {(this, "S"): 5, (this, "D"): 1, (this - 1, "S"): 2})
    assert not report_minutes(metered, 1, {(this, "S"): 5})
    report_minutes(metered, 2, {(this, "S"): 1, (hour * 60 - 1, "R"): 4})
    assert minutes(metered) == {this % 60: {"S": 6, "D": 1}, this % 60 - 1: {"S": 2}}
    assert minutes(metered, NOW - HOUR) == {59: {"R": 4}}
    assert minutes(metered, NOW + HOUR) == {}
    for key in (metered.keys.minutes(hour), metered.keys.minutes(hour - 1)):
        assert 0 < metered.redis.pttl(key) <= KEPT


@pytest.mark.parametrize("minute", [0, NOW // 60_000 + 1, NOW // 60_000 + 10**6, NOW // 60_000 - 24 * 60 - 1])
def test_a_minute_that_cannot_be_right_is_the_current_one(metered: Metered, minute: int) -> None:
    report_minutes(metered, 1, {(minute, "S"): 5})
    assert minutes(metered) == {NOW // 60_000 % 60: {"S": 5}}
    assert len([key for key in metered.everything() if ":t:" in str(key)]) == 1


@pytest.mark.audit(skip="a key of a wrong type")
def test_an_hour_of_a_wrong_type_is_an_error_with_its_name_and_nothing_is_written(metered: Metered) -> None:
    key = metered.keys.minutes(NOW // HOUR)
    metered.redis.set(key, "mine", px=60_000)
    before = metered.everything()
    with pytest.raises(ReplyError, match=f"WRONGTYPE {key} is not a hash"):
        report_minutes(metered, 1, {(NOW // 60_000, "S"): 5})
    assert metered.everything() == before


def test_a_value_of_an_hour_that_is_not_a_number_is_replaced_and_other_fields_are_ignored(
    metered: Metered,
) -> None:
    key, place = metered.keys.minutes(NOW // HOUR), NOW // 60_000 % 60
    metered.redis.hset(key, mapping={f"{place}|S": "x", "7|R": "y", "60|S": 1, "x|S": 1, "3|Q": 1, "S": 1})
    assert minutes(metered) == {}
    report_minutes(metered, 1, {(NOW // 60_000, "S"): 5})
    assert minutes(metered) == {place: {"S": 5}}
