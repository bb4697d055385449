"""How many jobs of a backlog an executor takes at once: half of its slots, and all while the server is the limit."""

from __future__ import annotations

import pytest

from fennelq import clock
from fennelq.worker.running.batches import Batches
from fennelq.worker.running.slots import Slots

SLOTS = 8


class Bench:
    """An executor that fetches from a backlog, with a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slots: int = SLOTS) -> None:
        self.now = 100.0
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        self.slots = Slots(slots)
        self.batches = Batches(self.slots)

    def start(self, jobs: int) -> None:
        for _ in range(jobs):
            self.slots.take()

    def fetch(self, *, running: float, waiting: float) -> None:
        """A fetch during which the jobs end after `running` seconds; its reply comes `waiting` seconds later."""
        self.batches.sent()
        self.now += running
        for _ in range(self.slots.taken):
            self.slots.give_back()
        self.now += waiting
        self.batches.replied()

    def takes_half(self) -> bool:
        return min(self.batches.most, self.slots.count) == (self.slots.count + 1) // 2


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


@pytest.mark.parametrize(("slots", "half"), [(1, 1), (2, 1), (3, 2), (32, 16)])
def test_half_of_the_slots_are_filled_at_once(monkeypatch: pytest.MonkeyPatch, slots: int, half: int) -> None:
    assert Bench(monkeypatch, slots).batches.most == half


def test_an_executor_that_has_jobs_while_the_server_fetches_goes_on_like_this(bench: Bench) -> None:
    for _ in range(200):
        bench.start(SLOTS // 2)
        bench.fetch(running=2.0, waiting=1.0)
        assert bench.takes_half()


def test_an_executor_that_mostly_waits_for_the_server_fills_all_slots_and_then_tries_again(
    bench: Bench,
) -> None:
    bench.start(SLOTS // 2)
    bench.fetch(running=1.0, waiting=2.0)
    large = 0
    while not bench.takes_half():
        assert bench.batches.most >= SLOTS
        bench.start(SLOTS)
        bench.fetch(running=1.0, waiting=2.0)
        large += 1
    assert large == 50
    bench.start(SLOTS // 2)
    bench.fetch(running=1.0, waiting=2.0)
    assert not bench.takes_half()


def test_the_first_jobs_are_waited_for_in_any_case(bench: Bench) -> None:
    bench.fetch(running=0.0, waiting=10.0)
    assert bench.takes_half()


def test_a_job_that_goes_on_is_work_to_do(bench: Bench) -> None:
    bench.start(2)
    bench.batches.sent()
    bench.now += 1.0
    bench.slots.give_back()
    bench.now += 5.0
    bench.batches.replied()
    assert bench.takes_half()


def test_the_reply_of_another_fetch_does_not_count(bench: Bench) -> None:
    bench.start(1)
    bench.fetch(running=1.0, waiting=0.0)
    bench.now += 50.0
    bench.batches.replied()
    assert bench.takes_half()


def test_a_fetch_that_got_no_reply_does_not_count(bench: Bench) -> None:
    bench.start(1)
    bench.batches.sent()
    bench.slots.give_back()
    bench.now += 10.0
    bench.fetch(running=0.0, waiting=1.0)
    assert bench.takes_half()


def test_an_executor_that_waits_for_half_of_a_fetch_goes_on(bench: Bench) -> None:
    bench.start(SLOTS // 2)
    bench.fetch(running=1.0, waiting=1.0)
    assert bench.takes_half()
