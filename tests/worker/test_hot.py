"""Which queue an executor asks next: strict, or in proportion to the weights; drained queues are not asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from fennelq.model.routing import Routing
from fennelq.worker.running.hot import Asked, HotQueues

FREE = 32


class Bench:
    """Hot queues, and how many jobs wait in each. A fetch takes what there is, at most as many as are asked for."""

    def __init__(self, routing: str, waiting: Mapping[str, int] | None = None) -> None:
        self.routing, self.hot = Routing.parse(routing), HotQueues()
        self.waiting = Counter[str](waiting or {})
        self.taken = Counter[str]()
        self.hot.serve(self.routing)
        self.hot.add(self.routing.weights)

    def send(self, queue: str, jobs: int = 1) -> None:
        """Add jobs, and receive the message about them."""
        self.waiting[queue] += jobs
        self.hot.add([queue], woken=True)

    def next(self, free: int = FREE) -> Asked:
        return self.hot.next(free)

    def fetch(self, queue: str, most: int) -> int:
        reason = self.hot.reason(queue)
        jobs = min(most, self.waiting[queue])
        self.waiting[queue] -= jobs
        self.taken[queue] += jobs
        self.hot.fetched(queue, jobs, reason, drained=jobs < most)
        return jobs

    def turn(self, free: int = FREE) -> Asked:
        asked = self.next(free)
        for queue, most in asked:
            self.fetch(queue, most)
        return asked

    def take(self, jobs: int, free: int = FREE) -> None:
        """Take so many jobs, or a few more."""
        enough = self.taken.total() + jobs
        while self.taken.total() < enough:
            assert self.turn(free)


# Drained queues


def test_a_queue_that_was_found_empty_is_not_asked_until_there_is_a_reason() -> None:
    bench = Bench("a")
    assert bench.turn() == [("a", FREE)]
    assert (bench.next(), len(bench.hot), "a" in bench.hot) == ([], 0, False)
    bench.hot.add(["a"])
    assert (bench.next(), len(bench.hot), "a" in bench.hot) == ([("a", FREE)], 1, True)


def test_a_queue_that_was_not_drained_is_asked_again() -> None:
    bench = Bench("a", {"a": FREE})
    assert bench.turn() == [("a", FREE)]
    assert bench.turn() == [("a", FREE)]
    assert bench.turn() == []


def test_a_message_that_arrives_during_a_fetch_keeps_the_queue_hot() -> None:
    """The fetch may have missed the job."""
    bench = Bench("a")
    before = bench.hot.reason("a")
    bench.hot.add(["a"])
    bench.hot.fetched("a", 0, before, drained=True)
    assert "a" in bench.hot
    bench.hot.fetched("a", 0, bench.hot.reason("a"), drained=True)
    assert "a" not in bench.hot


def test_a_reply_about_a_queue_that_was_left_meanwhile_changes_nothing() -> None:
    bench = Bench("a:1,b:1")
    before = bench.hot.reason("a")
    bench.hot.discard("a")
    bench.hot.fetched("a", 5, before, drained=False)
    assert "a" not in bench.hot
    assert bench.next() == [("b", FREE)]
    bench.hot.discard("never")


# Strict


def test_strict_queues_are_asked_one_after_the_other() -> None:
    bench = Bench("a,b,c", {"b": 40, "c": 1})
    assert [bench.turn() for _ in range(5)] == [
        [("a", FREE)],
        [("b", FREE)],
        [("b", FREE)],
        [("c", FREE)],
        [],
    ]


def test_a_strict_queue_comes_before_the_later_ones_as_soon_as_it_has_a_job() -> None:
    bench = Bench("a,b", {"b": 1000})
    bench.turn()
    assert bench.turn() == [("b", FREE)]
    bench.send("a", 40)
    assert [bench.turn() for _ in range(3)] == [[("a", FREE)], [("a", FREE)], [("b", FREE)]]
    assert bench.taken["a"] == 40


# Shares


@pytest.mark.parametrize("free", [1, 7, FREE])
@pytest.mark.parametrize(
    ("routing", "shares"),
    [
        ("a:3,b:1", {"a": 0.75, "b": 0.25}),
        ("a:1,b:1,c:1", {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}),
        ("a:10,b:1", {"a": 10 / 11, "b": 1 / 11}),
    ],
)
def test_queues_with_a_backlog_get_their_shares(routing: str, shares: dict[str, float], free: int) -> None:
    bench = Bench(routing, dict.fromkeys(shares, 100_000))
    bench.take(10_000, free)
    total = bench.taken.total()
    for queue, share in shares.items():
        assert bench.taken[queue] / total == pytest.approx(share, abs=0.05 * share)


def test_no_queue_starves() -> None:
    """Every queue is asked again before another one has had more than two fetches more for its weight."""
    routing = ",".join(f"q{number}:{number % 3 + 1}" for number in range(20))
    weights = Routing.parse(routing).weights
    bench = Bench(routing, dict.fromkeys(weights, 10**9))
    for _ in range(2000):
        bench.turn()
        levels = [bench.taken[queue] / weight for queue, weight in weights.items()]
        assert max(levels) - min(levels) <= 2 * FREE


def test_a_queue_that_becomes_hot_starts_level_with_the_others() -> None:
    """It waits for no other queue to be drained, and has not saved up a share while it was empty."""
    bench = Bench("a:1,b:1", {"a": 1_000_000})
    bench.take(10_000)
    assert bench.taken["b"] == 0
    bench.send("b", 1_000_000)
    assert [queue for queue, _ in bench.turn()] == ["b"]
    before = bench.taken.copy()
    bench.take(1000)
    got = bench.taken - before
    assert abs(got["a"] - got["b"]) <= 2 * FREE


def test_a_queue_gains_nothing_by_having_been_drained() -> None:
    bench = Bench("a:1,b:1", {"a": 1_000_000, "b": 1})
    for _ in range(100):
        bench.take(100)
        bench.send("b", 1)
    before = bench.taken.copy()
    bench.send("b", 1_000_000)
    bench.take(1000)
    got = bench.taken - before
    assert abs(got["a"] - got["b"]) <= 2 * FREE


def test_a_queue_gains_nothing_by_a_change_of_the_other_queues() -> None:
    """Where queues are made all the time, one that gets a job all the time does not starve a backlog."""
    bench = Bench("c:1,a:1,b:1", {"a": 1_000_000})
    bench.turn(4)
    for turn in range(100):
        bench.hot.serve(Routing.parse(f"c:1,a:1,b:1,new{turn}:1"))
        bench.send("b")
        bench.turn(4)
    assert abs(bench.taken["a"] - bench.taken["b"]) <= 8


def test_a_queue_that_is_served_again_starts_level_with_the_others() -> None:
    for again in ("a:1", "a:1,b:1"):
        bench = Bench("a:1,b:1", {"a": 1000})
        bench.turn(4)
        bench.send("b", 3)
        assert bench.turn(4) == [("b", 4)]
        bench.hot.serve(Routing.parse(again))
        bench.hot.serve(Routing.parse("a:1,b:1"))
        bench.send("b")
        assert bench.next(4) == [("b", 4) if again == "a:1" else ("a", 4)]


# Queues asked at the same time


def test_queues_without_a_known_backlog_share_the_slots() -> None:
    assert Bench("a:1,b:1,c:1").next(8) == [("a", 3), ("b", 3), ("c", 2)]


def test_at_most_as_many_queues_are_asked_as_slots_are_free() -> None:
    asked = Bench(",".join(f"q{number}:1" for number in range(50))).next(8)
    assert [most for _, most in asked] == [1] * 8
    assert len({queue for queue, _ in asked}) == 8


def test_a_backlog_gets_all_slots_when_it_is_its_turn() -> None:
    bench = Bench("a:1,b:1", {"a": 100, "b": 100})
    assert bench.turn(8) == [("a", 4), ("b", 4)]
    assert [bench.turn(8) for _ in range(4)] == [[("a", 8)], [("b", 8)], [("a", 8)], [("b", 8)]]


def test_a_backlog_gets_as_many_slots_as_are_wanted_for_one() -> None:
    bench = Bench("a:1,b:1", {"a": 100})
    assert bench.hot.next(8, 4) == [("a", 4), ("b", 4)]
    assert not bench.hot.has_backlog("a"), "it was not asked yet"
    bench.turn(8)
    assert (bench.hot.has_backlog("a"), bench.hot.has_backlog("b"), bench.hot.has_backlog("c")) == (
        True,
        False,
        False,
    )
    assert (bench.hot.next(8, 4), bench.hot.next(3, 4)) == ([("a", 4)], [("a", 3)])


def test_a_queue_that_was_rung_is_asked_before_a_backlog() -> None:
    bench = Bench("a:1,b:1,c:1", {"a": 1000})
    for _ in range(4):
        bench.turn()
    bench.send("b")
    bench.send("c")
    assert sorted(queue for queue, _ in bench.next()) == ["b", "c"]
    bench.turn()
    assert bench.next() == [("a", FREE)]


def test_a_queue_of_which_a_message_tells_is_asked_before_those_that_are_only_looked_at() -> None:
    bench = Bench(",".join(f"q{number}:1" for number in range(1000)))
    bench.send("q900")
    assert bench.next(1) == [("q900", 1)]
    bench.turn(1)
    assert bench.next(2) == [("q0", 1), ("q1", 1)]


@pytest.mark.parametrize("free", [1, 4])
def test_a_queue_that_gets_a_job_all_the_time_does_not_starve_a_backlog(free: int) -> None:
    bench = Bench("a:1,b:1", {"a": 1_000_000})
    bench.turn(free)
    for _ in range(1000):
        bench.send("b")
        bench.turn(free)
    assert bench.taken["a"] >= 400


def test_the_queues_of_a_pattern_share_its_place_in_a_strict_order() -> None:
    hot, routing = HotQueues(), Routing.parse("urgent,mail.*").including(["mail.a", "mail.b", "other"])
    hot.serve(routing)
    hot.add(routing.weights)
    taken = Counter[str]()
    for turn in range(300):
        if turn == 150:
            hot.add(["urgent"], woken=True)
            assert hot.next(4) == [("urgent", 4)]
        for queue, most in hot.next(4):
            drained = queue == "urgent"
            taken[queue] += 0 if drained else most
            hot.fetched(queue, 0 if drained else most, hot.reason(queue), drained=drained)
    assert set(taken) == {"urgent", "mail.a", "mail.b"}
    assert abs(taken["mail.a"] - taken["mail.b"]) <= 4


def test_queues_that_are_not_served_any_more_are_not_asked() -> None:
    bench = Bench("a:1,b:1,c:1")
    bench.hot.serve(Routing.parse("b:1,c:1"))
    assert bench.next(2) == [("b", 1), ("c", 1)]
    assert "a" not in bench.hot


def test_a_queue_that_is_looked_at_again_keeps_its_place_among_the_others() -> None:
    bench = Bench("a:1,b:1,c:1")
    bench.hot.add(["c", "b"])
    assert bench.next(1) == [("a", 1)]


def test_queues_whose_fetch_failed_are_asked_again() -> None:
    bench = Bench("a:1,b:1,c:1")
    assert bench.next(2) == bench.next(2) == [("a", 1), ("b", 1)]


def test_a_queue_that_is_not_hot_has_no_reason_to_be_asked() -> None:
    assert Bench("a").hot.reason("never") == 0


def test_after_all_were_drained_all_start_level() -> None:
    bench = Bench("a:1,b:1", {"a": 10_000})
    while bench.turn():
        pass
    bench.send("a", 10_000)
    bench.send("b", 10_000)
    before = bench.taken.copy()
    bench.take(1000)
    got = bench.taken - before
    assert abs(got["a"] - got["b"]) <= 2 * FREE
