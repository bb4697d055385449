"""limit: numbers that are changed at run time count at once."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from fennelq.model.outcome import rate_limited
from tests.broker.desk import Desk
from tests.broker.limited import in_line, send, taken
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]


def test_a_raised_limit_lets_in_what_waits_and_a_lowered_one_holds_from_the_next_start(desk: Desk) -> None:
    """L11. The number that was set counts, and not the one that the code of the caller has."""
    send(desk, *"12345")
    (first,) = desk.take()
    assert desk.do(verbs.queues.limit, "c:account", "3") == ("0", 1)
    desk.do(verbs.queues.promote, 100)
    second, third = desk.take()
    assert (second.key, third.key) == ("2", "3")
    desk.do(verbs.queues.limit, "c:account", "1")
    assert desk.finish([first, second]) == [1, 1]
    assert taken(desk) == []
    desk.do(verbs.queues.limit, "c:account", "")
    desk.finish([third])
    assert taken(desk) == ["4"]


def test_a_limit_of_zero_lets_none_in_until_it_is_raised(desk: Desk) -> None:
    send(desk, "1", "2")
    runs = desk.take()
    desk.do(verbs.queues.limit, "c:account", "0")
    assert desk.finish(runs) == [1]
    assert (taken(desk), in_line(desk)) == ([], ["2"])
    assert "open_failed" not in desk.stats()
    desk.do(verbs.queues.limit, "c:account", "1")
    desk.do(verbs.queues.promote, 100)
    assert taken(desk) == ["2"]


def test_a_changed_rate_counts_at_once_for_what_waits_and_for_what_comes_later(desk: Desk) -> None:
    """The starts so far are not counted by the former rate, under which the next was due in an hour."""
    send(desk, "1", "2", gates="r3600000000/1:send")
    assert taken(desk) == ["1"]
    desk.do(verbs.queues.limit, "r:send", "1/1")
    assert desk.do(verbs.queues.promote, 100)[0] == 1
    assert taken(desk) == ["2"]
    desk.do(verbs.queues.limit, "r:send", "")
    send(desk, "3", gates="r3600000000/1:host")
    assert taken(desk) == ["3"]
    desk.do(verbs.queues.limit, "r:host", "1/1")
    send(desk, "4", gates="r3600000000/1:host")
    assert taken(desk) == ["4"]


def test_a_changed_rate_does_not_end_a_stop_by_another_service(desk: Desk) -> None:
    send(desk, "1", "2", gates="r1/9:host")
    (first, second) = desk.take(free=2)
    desk.finish([first], rate_limited(60_000))
    desk.release([second])
    assert taken(desk) == ["2"]
    desk.do(verbs.queues.limit, "r:host", "2/1")
    desk.do(verbs.queues.promote, 100)
    send(desk, "3", gates="r1/9:host")
    assert taken(desk) == []
    assert in_line(desk, "r:host") == ["1", "3"]


def test_a_stop_by_another_service_ends_with_the_first_start_after_it(desk: Desk) -> None:
    """Then a raised rate counts at once again."""
    send(desk, "1", gates="r1/1:host")
    (first,) = desk.take()
    desk.finish([first], rate_limited(1))
    send(desk, "2", gates="r1/1:host")
    desk.do(verbs.queues.limit, "r:host", "3600000000/1")

    def started() -> bool:
        desk.do(verbs.queues.promote, 100)
        return taken(desk) == ["1"]

    eventually(started)
    assert taken(desk) == []
    desk.do(verbs.queues.limit, "r:host", "1/1")
    desk.do(verbs.queues.promote, 100)
    assert taken(desk) == ["2"]


def test_only_the_gates_of_the_limit_are_opened_and_a_sleeper_is_told(desk: Desk) -> None:
    send(desk, "1", "2")
    send(desk, "3", "4", gates="c1:other")
    desk.take()
    desk.sleep("bert")
    with desk.subscribed("bert") as heard:
        assert desk.do(verbs.queues.limit, "c:account", "2") == ("0", 1)
        assert heard() == [("bert", "due 0")]
    assert [*desk.due("turn")] == ["c:account/17"]


def test_a_reset_limit_is_forgotten(desk: Desk) -> None:
    desk.do(verbs.queues.limit, "c:account", "2")
    desk.do(verbs.queues.limit, "c:other", "3")
    assert desk.do(verbs.queues.limit, "c:account", "") == ("0", 0)
    assert desk.redis.hgetall(desk.keys["limits"]) == {b"c:other": b"3"}


def test_the_further_pages_of_a_change_do_not_overwrite_a_later_one(desk: Desk) -> None:
    desk.do(verbs.queues.limit, "c:account", "2")
    desk.do(verbs.queues.limit, "c:account", "5")
    desk.do(verbs.queues.limit, "c:account", "2", "7")
    assert desk.redis.hgetall(desk.keys["limits"]) == {b"c:account": b"5"}
