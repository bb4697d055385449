"""When an executor looks at its queues without being woken: often enough for lost messages, and no more often."""

from __future__ import annotations

import itertools

import pytest

from fennelq.worker.rounds import Rounds, length_of

ROUND, UNHEARD = 5.0, 1.0


class Watch:
    """Rounds on a clock that jumps from look to look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("fennelq.clock.monotonic", lambda: self.now)
        self.rounds = Rounds()

    def looks(
        self, queues: list[str], seconds: float, round_of: float = ROUND
    ) -> list[tuple[float, list[str]]]:
        """The looks of the next so many seconds, with their times."""
        found: list[tuple[float, list[str]]] = []
        end = self.now + seconds
        while self.now <= end:
            if page := self.rounds.due(queues, round_of):
                found.append((self.now, page))
            assert self.rounds.seconds > 0
            self.now += self.rounds.seconds
        return found


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def named(number: int) -> list[str]:
    return [f"q{n}" for n in range(number)]


def longest_gap(looks: list[tuple[float, list[str]]], queue: str) -> float:
    """The longest time between two looks at a queue."""
    times = [moment for moment, page in looks if queue in page]
    return max(later - sooner for sooner, later in itertools.pairwise(times))


@pytest.mark.parametrize("number", [1, 2, 99, 100, 101, 250, 499, 500])
def test_up_to_500_queues_are_all_looked_at_within_five_seconds(watch: Watch, number: int) -> None:
    queues = named(number)
    looks = watch.looks(queues, 60)
    assert {queue for _, page in looks for queue in page} == set(queues)
    assert max(longest_gap(looks, queue) for queue in queues) <= 5.0 + 1e-6


@pytest.mark.parametrize("number", [501, 1000, 2000])
def test_with_more_queues_a_round_takes_a_second_per_hundred(watch: Watch, number: int) -> None:
    queues = named(number)
    looks = watch.looks(queues, number / 100 * 4)
    assert max(longest_gap(looks, queue) for queue in queues) <= -(-number // 100) + 1e-6


@pytest.mark.parametrize("number", [600, 2000, 100_000])
def test_no_more_than_a_hundred_queues_are_looked_at_in_a_look(watch: Watch, number: int) -> None:
    """With the jitter, that is 100 to 133 in a second."""
    looks = watch.looks(named(number), 30)
    assert {len(page) for _, page in looks} == {100}
    pauses = [later[0] - sooner[0] for sooner, later in itertools.pairwise(looks)]
    assert all(0.75 <= pause <= 1.0 for pause in pauses)


def test_few_queues_are_looked_at_together_and_about_every_five_seconds(watch: Watch) -> None:
    looks = watch.looks(["a", "b"], 60)
    assert all(page == ["a", "b"] for _, page in looks)
    pauses = [later[0] - sooner[0] for sooner, later in itertools.pairwise(looks)]
    assert all(3.75 <= pause <= 5.0 for pause in pauses)
    assert len({round(pause, 6) for pause in pauses}) > 1, "the executors of a fleet must not look in step"


def test_the_first_look_is_at_once(watch: Watch) -> None:
    assert (watch.rounds.seconds, watch.rounds.due(["a"], ROUND)) == (0.0, ["a"])
    assert watch.rounds.due(["a"], ROUND) == []


def test_while_no_messages_arrive_a_look_follows_each_second(watch: Watch) -> None:
    looks = watch.looks(["a"], 20, 1.0)
    pauses = [later[0] - sooner[0] for sooner, later in itertools.pairwise(looks)]
    assert len(looks) >= 20
    assert all(0.75 <= pause <= 1.0 for pause in pauses)


def test_when_messages_stop_arriving_the_next_look_is_within_a_second(watch: Watch) -> None:
    watch.rounds.due(["a"], ROUND)
    assert watch.rounds.seconds > 3
    assert watch.rounds.due(["a"], 1.0) == []
    assert watch.rounds.seconds <= 1.0


def test_queues_that_appear_during_a_round_are_in_the_next_one(watch: Watch) -> None:
    queues = named(150)
    assert len(watch.rounds.due(queues, ROUND)) == 100
    watch.now += 5.0
    assert watch.rounds.due([*queues, "new"], ROUND) == queues[100:]
    watch.now += 5.0
    assert watch.rounds.due(["new", *queues], ROUND)[0] == "new"


def test_without_queues_there_is_nothing_to_look_at(watch: Watch) -> None:
    assert watch.looks([], 12) == []


def test_a_round_that_begins_again_looks_at_all_queues(watch: Watch) -> None:
    queues = named(150)
    watch.rounds.due(queues, ROUND)
    watch.rounds.begin_again()
    assert watch.rounds.seconds == 0
    assert watch.rounds.due(queues, ROUND) == queues[:100]


@pytest.mark.parametrize(
    ("queues", "length"), [(0, 5), (1, 5), (100, 5), (500, 5), (501, 6), (100_000, 1000)]
)
def test_a_round_is_as_long_as_it_should_be_or_as_its_queues_demand(queues: int, length: float) -> None:
    assert length_of(queues, ROUND) == length


def test_a_round_of_few_queues_may_be_shorter_than_a_second() -> None:
    assert length_of(100, 0.2) == 0.2
