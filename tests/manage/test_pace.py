"""The pace of a replay: the jobs of each second, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from fennelq import clock
from fennelq.broker.keys import queue_keys
from fennelq.broker.talk import Finding, Found, Pause, Talk
from fennelq.broker.verbs.dead import DeadJob
from fennelq.errors import ConfigurationError
from fennelq.manage.dead import replaying
from fennelq.manage.dead.letter import ReplayReport
from fennelq.manage.dead.plan import Batch
from fennelq.manage.dead.replaying import Replaying
from fennelq.manage.pace import Pace

RATE = 50
KEYS = queue_keys("shop", "mail")


class World:
    """Time passes only while the replay pauses, and while a page is sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.sent = 1000.0, list[tuple[float, int]]()
        self.page_takes: Callable[[], float] = lambda: 0.001
        self.oversleeps: Callable[[], float] = lambda: 0.0
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        monkeypatch.setattr(replaying, "answers_of", self._answers_of)
        monkeypatch.setattr(replaying, "report_of", self._report_of)

    def replay(self, jobs: int, rate: float = RATE) -> ReplayReport:
        """Put so many jobs back, in batches of a hundred."""
        talk = Replaying(_batches(jobs), Pace(rate), None).all()
        try:
            while True:
                asked = next(talk)
                assert isinstance(asked, Pause)
                if asked.seconds > 0:
                    self.now += asked.seconds + self.oversleeps()
        except StopIteration as end:
            report: ReplayReport = end.value
            return report

    def _answers_of(self, _: Any, page: Sequence[DeadJob], __: Any) -> Talk[Sequence[int]]:
        self.sent.append((self.now - 1000, len(page)))
        self.now += self.page_takes()
        return [1] * len(page)
        yield

    def _report_of(self, *_: Any) -> Talk[ReplayReport]:
        return ReplayReport(replayed=self.sent[-1][1])
        yield

    @property
    def most_in_a_second(self) -> int:
        """The largest number of jobs within a second, whenever it begins."""
        return max(self.within(begin, begin + 1) for begin, _ in self.sent)

    def within(self, begin: float, end: float) -> int:
        """The jobs that were sent between two moments."""
        return sum(jobs for at, jobs in self.sent if begin <= at < end)


def _batches(jobs: int) -> Finding[Batch]:
    for begin in range(0, jobs, 100):
        page = [DeadJob("mail", f"{n}-1", str(n), "t", "E", "", "") for n in range(begin, begin + 100)]
        yield Found(Batch(KEYS, page[: jobs - begin], {}))


def once(at: Callable[[], float], moments: Iterable[float], usually: float) -> Callable[[], float]:
    """Takes a second once after each of these moments."""
    left = list(moments)

    def takes() -> float:
        if left and at() >= left[0]:
            left.pop(0)
            return 1.0
        return usually

    return takes


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("oversleep", [0.0, 0.004, 0.03])
@pytest.mark.parametrize("page", [0.0, 0.001, 0.05, 0.09])
def test_50_per_second_are_45_to_55_in_every_second(world: World, page: float, oversleep: float) -> None:
    world.page_takes, world.oversleeps = lambda: page, lambda: oversleep
    assert world.replay(1000) == ReplayReport(replayed=1000)
    assert world.most_in_a_second <= 55
    assert all(45 <= world.within(second, second + 1) <= 55 for second in range(19))
    assert 19 <= world.sent[-1][0] <= 21


@pytest.mark.parametrize("page", [0.1, 0.15, 0.28, 0.3, 0.5])
def test_the_rate_is_reached_when_each_page_takes_long(world: World, page: float) -> None:
    world.page_takes = lambda: page
    world.replay(1000)
    assert world.most_in_a_second <= 55
    assert 45 * 15 <= world.within(0, 15) <= 55 * 15


@pytest.mark.parametrize("where", ["page_takes", "oversleeps"])
@pytest.mark.parametrize("stalls", [[3.0], [3.02, 7.5], [0.0], [2.0, 3.0]])
def test_after_a_stall_there_is_no_burst_and_the_average_is_reached_again(
    world: World, where: str, stalls: list[float]
) -> None:
    setattr(world, where, once(lambda: world.now - 1000, stalls, 0.001))
    world.replay(2000)
    assert world.most_in_a_second <= 55
    assert 45 * 30 <= world.within(0, 30) <= 55 * 30
    # When it has caught up, it goes on at the rate.
    assert 49 * 5 <= world.within(30, 35) <= 51 * 5


def test_a_long_stall_is_not_made_up_for(world: World) -> None:
    """A machine that slept for an hour: otherwise the replay would be faster than asked for long."""
    world.oversleeps = iter([0.0, 0.0, 3600.0, *[0.0] * 5000]).__next__
    world.replay(3000)
    assert world.most_in_a_second <= 55
    assert 49 * 10 <= world.within(3640, 3650) <= 51 * 10


@pytest.mark.parametrize("rate", [0.5, 1, 7, 19, 55, 333, 1000])
def test_other_rates_are_kept_as_well(world: World, rate: float) -> None:
    world.oversleeps = lambda: 0.002
    world.replay(int(rate * 20), rate)
    assert world.most_in_a_second <= max(1, rate * 1.1)
    assert rate * 9 <= world.within(0, 10) <= rate * 11


def test_a_rate_is_more_than_nothing() -> None:
    with pytest.raises(ConfigurationError, match="rate must be more than 0 per second, not -1"):
        Pace(-1)
