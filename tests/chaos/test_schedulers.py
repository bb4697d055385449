"""Time, kept by several processes at once: a tick is one job, whatever their clocks show and whichever of them dies."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, cast

import pytest

from fennelq import clock
from fennelq.broker import verbs
from fennelq.model.job import JobInfo, Status
from tests.chaos import clockwork, scale
from tests.chaos.conftest import Figure
from tests.chaos.crew import KEYS, Crew
from tests.chaos.test_network import skewed
from tests.kit.ledger import Row
from tests.kit.waiting import eventually

pytestmark = pytest.mark.timeout(scale.of(300, long=1200))

CRASHED: Final = 137


def exactly(crew: Crew, name: str, number: int, every: float) -> list[int]:
    """A schedule with so many ticks and no more, which begins in a moment; answers them."""
    step = round(every * 1000)
    first = (crew.now() // step + round(1 / every)) * step
    ticks = [first + step * n for n in range(number)]
    start, end = clock.from_ms(ticks[0]), clock.from_ms(ticks[-1])
    crew.add(name, every=every, start=start, end=end)
    return ticks


# Once


def test_five_schedulers_with_clocks_hours_apart_run_every_tick_exactly_once(
    crew: Crew, figure: Figure
) -> None:
    for skew in (0, 2, -2, 7200, -7200):
        crew.joins(settings=skewed(skew))
    crew.at_work()
    ticks = exactly(crew, "beat", scale.of(200, long=1000), 0.05)
    eventually(lambda: crew.now() > ticks[-1], within=120, every=0.1)
    starts = crew.all_ended("beat")
    crew.goes_home()
    late = [lateness(crew, row) for row in crew.ledger.read() if row.kind == "start"]
    figure(
        "D6",
        f"5 schedulers, clocks 4 hours apart: {len(ticks)} ticks, {sum(starts.values())} runs, {worst(late)}",
    )
    assert starts == Counter(ticks)
    assert Counter(crew.ledger.ends().values()) == {1: len(ticks)}


def lateness(crew: Crew, row: Row) -> float:
    """Milliseconds from the tick to the start of its run."""
    wall = crew.now() - (time.monotonic() - row.at) * 1000
    return wall - int(row.job_id.rpartition(".")[2])


def worst(late: list[float]) -> str:
    ranked = sorted(late)
    return f"p50 {ranked[len(ranked) // 2]:.0f} ms late, p99 {ranked[int(len(ranked) * 0.99)]:.0f} ms"


def test_schedulers_that_are_killed_lose_no_tick_and_make_none_twice(crew: Crew, figure: Figure) -> None:
    dice = scale.dice("schedulers")
    for _ in range(4):
        crew.joins()
    crew.at_work()
    ticks = exactly(crew, "beat", scale.of(60, long=600), 0.1)
    kills = 0
    while crew.now() < ticks[-1]:
        time.sleep(dice.uniform(0.1, scale.of(1, long=5)))  # a random moment
        crew.dies(dice.choice(crew.members))
        crew.joins()
        crew.at_work()
        kills += 1
    starts = crew.all_ended("beat", within=60)
    crew.goes_home()
    again = sum(starts.values()) - len(starts)
    figure(
        "D6",
        f"4 schedulers, {kills} kills: {len(ticks)} ticks, {len(starts)} jobs, {again} of them started again",
    )
    assert set(starts) == set(ticks)
    assert all(found is not None and found.status is Status.SUCCESS for found in records(crew, "beat", ticks))
    assert again <= 8 * kills


def records(crew: Crew, name: str, ticks: Iterable[int]) -> list[JobInfo | None]:
    return [crew.record(name, tick) for tick in ticks]


POINTS: Final = [
    f"{moment}:{arrow}:{nth}"
    for arrow, nth in (("declare", 1), ("look", 3), ("tick", 2), ("enqueue", 2))
    for moment in ("before", "sent", "answered")
]


def test_a_scheduler_that_dies_between_any_two_steps_leaves_the_rest_to_the_others(
    crew: Crew, figure: Figure
) -> None:
    def version(number: int) -> Mapping[str, str]:
        """Each has something of its own to declare."""
        beat: Mapping[str, Any] = {"every": 0.1, "catchup": "all:1000"}
        return {clockwork.SCHEDULES: json.dumps({"beat": beat, f"of-{number}": {"every": 3600}})}

    for first in range(0, len(POINTS), 4):
        points = [*enumerate(POINTS[first : first + 4], first)]
        victims = [crew.joins(settings={**version(n), "_FENNELQ_CRASH": point}) for n, point in points]
        for victim, (_, point) in zip(victims, points, strict=True):
            assert victim.returncode(30) == CRASHED, point
            crew.dies(victim)
    crew.joins(settings=version(len(POINTS)))
    crew.at_work()
    began = crew.now()
    eventually(lambda: max(crew.starts("beat"), default=0) > began + 500, within=30)
    crew.broker.run(verbs.schedules.schedule(KEYS, "pause", "beat"))
    starts = crew.all_ended("beat")
    crew.goes_home()
    figure("D6", f"died at {len(POINTS)} points: {len(starts)} ticks, {sum(starts.values())} starts")
    assert sorted(starts) == [*range(min(starts), max(starts) + 1, 100)]


def test_when_all_are_gone_for_three_ticks_those_run_that_are_to_be_caught_up(
    crew: Crew, figure: Figure
) -> None:
    policies = {"none": "none", "last": "last", "all": "all:3"}
    schedules = {name: {"every": 1, "catchup": catchup} for name, catchup in policies.items()}
    declared = {clockwork.SCHEDULES: json.dumps(schedules)}
    for _ in range(3):
        crew.joins(settings=declared)
    eventually(lambda: all(len(crew.starts(name)) >= 2 for name in policies), within=30)
    crew.all_ended("none")
    for member in [*crew.members]:
        crew.dies(member)
    before = {name: max(crew.starts(name)) for name in policies}
    eventually(lambda: crew.now() > max(before.values()) + 3200, within=30, every=0.05)
    for _ in range(3):
        crew.joins(settings=declared)
    crew.at_work()
    back = eventually(lambda: awake_since(crew, max(before.values())), within=30)
    eventually(lambda: all(max(crew.starts(name)) > back for name in policies), within=30)
    starts = {name: crew.all_ended(name) for name in policies}
    crew.goes_home()
    run = {name: [tick for tick in sorted(starts[name]) if before[name] < tick <= back] for name in policies}
    missed = [*range(before["none"] + 1000, back + 1, 1000)]
    figure(
        "D6",
        f"{len(missed)} ticks missed: { ({name: len(ticks) for name, ticks in run.items()}) } were caught up",
    )
    assert len(missed) >= 3
    assert run == {"none": [], "last": missed[-1:], "all": missed[-3:]}
    assert all(set(counted.values()) == {1} for counted in starts.values())


def awake_since(crew: Crew, after: int) -> int:
    """Since when an executor has been looking (again); 0 while none has."""
    with crew.server.client() as client:
        since = int(cast("bytes", client.hget(KEYS["cron:meta"], "awake") or b"0"))
    return since if since > after else 0


def test_after_a_flush_under_many_schedulers_the_schedules_of_the_code_come_back(
    crew: Crew, figure: Figure
) -> None:
    declared = {clockwork.SCHEDULES: json.dumps({"beat": {"every": 0.1}})}
    for _ in range(3):
        crew.joins(settings=declared)
    eventually(lambda: len(crew.starts("beat")) > 5, within=30)
    crew.server.flush()
    flushed = crew.now()
    eventually(lambda: max(crew.starts("beat")) > flushed + 1000, within=30)
    crew.goes_home()
    ticks = sorted(tick for tick in crew.starts("beat") if tick > flushed)
    figure("R2", f"schedules were back {ticks[0] - flushed} ms after a flush")
    assert ticks == [*range(ticks[0], ticks[-1] + 1, 100)]
    assert ticks[0] - flushed <= 5000


def test_two_versions_of_the_code_at_once_do_not_fight(crew: Crew, figure: Figure) -> None:
    old, new = ({clockwork.SCHEDULES: json.dumps({"beat": {"every": every}})} for every in (0.1, 0.2))
    crew.joins(settings=old)
    eventually(lambda: len(crew.starts("beat")) > 3, within=30)
    crew.joins(settings=new)
    eventually(lambda: interval(crew) == 200, within=30)
    crew.joins(settings=old)
    crew.at_work()
    since = crew.now()
    seen = Counter[int]()
    while crew.now() < since + scale.of(1500, long=30_000):
        seen[interval(crew)] += 1
        time.sleep(0.01)
    crew.goes_home()
    figure("D6", f"two versions at once: {seen}")
    assert set(seen) == {200}


MANY: Final = 800
"""More pages than executors die."""


def test_a_declaration_whose_executor_dies_in_the_middle_is_completed_by_the_next(
    crew: Crew, figure: Figure
) -> None:
    def version(every: float) -> Mapping[str, str]:
        return {clockwork.SCHEDULES: json.dumps({f"s{n:03}": {"every": every} for n in range(MANY)})}

    points = [f"{moment}:declare:{nth}" for nth in (1, 2) for moment in ("before", "sent", "answered")]
    for every in (3600, 7200):
        for point in points:
            victim = crew.joins(settings={**version(every), "_FENNELQ_CRASH": point})
            assert victim.returncode(30) == CRASHED, point
            crew.dies(victim)
            if every == 7200:
                assert len(names(crew)) == MANY, point
        crew.joins(settings=version(every))
        eventually(partial(all_have, crew, every * 1000), within=30)
    crew.goes_home()
    figure("D6", f"{2 * len(points)} executors died while they declared {MANY} schedules")


def names(crew: Crew) -> list[str]:
    with crew.server.client() as client:
        return [name.decode() for name in cast("set[bytes]", client.smembers(KEYS["cron:names"]))]


def all_have(crew: Crew, interval_ms: int) -> bool:
    """Whether all schedules are there, with this interval."""
    states = [crew.broker.ask(verbs.schedules.state(KEYS, name)) for name in names(crew)]
    counted = Counter(int(json.loads(state["definition"])["every_ms"]) for state in states)
    return counted == {interval_ms: MANY}


def interval(crew: Crew) -> int:
    definition = crew.broker.ask(verbs.schedules.state(KEYS, "beat"))["definition"]
    return int(json.loads(definition)["every_ms"])
