"""The tally: what an executor counts about its jobs, and how little it keeps of that."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from fennelq.broker.verbs.runs import Settled
from fennelq.counting import SharedTotals
from fennelq.model.job import Delivery
from fennelq.model.metrics import OUTCOMES
from fennelq.model.outcome import DEAD, RETRY, SUCCESS, UNKNOWN_TASK, Outcome, succeeded
from fennelq.model.times import BUCKETS
from fennelq.model.totals import Pair, Row
from fennelq.worker import tally as room
from fennelq.worker.bus import JobHandedBack, JobLost, JobsTaken, RunsEnded
from fennelq.worker.tally import LOST, RELEASED, SUM, UNTIMED, Counted, Tally

NOW = 1_700_000_000_000
DONE = succeeded(b"1", 1000)
WELCOME, RESIZE = "shop:welcome", "shop:resize"


def delivery(task: str = WELCOME, *, fence: int = 1, due_ms: int = NOW) -> Delivery:
    return Delivery("mail", "s", "1-1", "7", task, b"", b"", 0, 1, fence, NOW - 10**9, due_ms)


def ended(
    tally: Tally, *seconds: float | None, task: str = WELCOME, queue: str = "mail", outcome: Outcome = DONE
) -> None:
    tally.ended(RunsEnded(queue, [Settled(delivery(task), outcome, length) for length in seconds]))


def taken(tally: Tally, *deliveries: Delivery) -> None:
    tally.taken(JobsTaken("mail", deliveries, NOW))


def runs_of(tally: Tally) -> dict[str, dict[int, float]]:
    """Task → bucket → runs, in the queue `mail`."""
    return {task: sparse(counted.run_times) for task, counted in tally.take()["mail"].items()}


def sparse(counts: Iterable[float]) -> dict[int, float]:
    return {bucket: count for bucket, count in enumerate(counts) if count}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of this process, which stands."""
    moment = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: moment[0])
    return moment


def test_a_run_is_counted_in_the_bucket_of_its_length() -> None:
    tally = Tally({WELCOME})
    ended(tally, 0.0, 0.001, 0.0011, 0.0025, 3600, 3600.1)
    ended(tally, 0.3, outcome=Outcome(RETRY))
    assert runs_of(tally) == {WELCOME: {0: 2, 1: 2, 8: 1, 17: 1, 18: 1}}
    assert tally.take() == {}


def test_a_job_without_its_task_is_no_run() -> None:
    tally = Tally({WELCOME})
    ended(tally, 0.3, outcome=Outcome(UNKNOWN_TASK))
    assert tally.take() == {"mail": {}}


def test_a_run_that_goes_on_when_its_outcome_is_written_has_no_length() -> None:
    tally = Tally({WELCOME})
    ended(tally, None, outcome=Outcome(DEAD))
    counted = tally.take()["mail"][WELCOME]
    assert (sparse(counted.run_times), sparse(counted.runs[DEAD])) == ({}, {UNTIMED: 1})


def test_runs_are_counted_by_their_outcomes() -> None:
    tally = Tally({WELCOME})
    ended(tally, 0.3, 0.3, 0.004)
    ended(tally, 0.3, None, outcome=Outcome(RETRY))
    tally.lost(JobLost(delivery()))
    tally.handed_back(JobHandedBack(delivery()))
    counted = tally.take()["mail"][WELCOME]
    numbers = {kind: counted.ended(kind) for kind in (SUCCESS, RETRY, LOST, RELEASED, DEAD)}
    assert numbers == {SUCCESS: 3, RETRY: 2, LOST: 1, RELEASED: 1, DEAD: 0}
    assert counted.ended(SUCCESS, RETRY) == 5
    assert sparse(counted.run_times) == {8: 3, 2: 1}


@pytest.mark.parametrize(("totals", "sums"), [(SharedTotals(), (0.75, 30_001)), (None, (0, 0))])
def test_the_sums_of_durations_are_kept_if_metrics_are_on(
    totals: SharedTotals | None, sums: tuple[float, float]
) -> None:
    tally = Tally({WELCOME}, totals)
    ended(tally, 0.25, 0.5)
    taken(tally, delivery(due_ms=NOW - 30_000), delivery(due_ms=NOW - 1), delivery(due_ms=NOW + 5))
    counted = tally.take()["mail"][WELCOME]
    assert (counted.runs[SUCCESS][SUM], counted.waits[SUM]) == sums
    assert (counted.ended(SUCCESS), sum(counted.waits[:BUCKETS])) == (2, 3)
    assert counted.row()[-1] == pytest.approx(sums[1] / 1000)


def test_a_row_has_the_runs_of_each_outcome_and_the_durations_of_all() -> None:
    tally = Tally({WELCOME}, SharedTotals())
    for kind, seconds in zip("SNRZGDK", (1, 2, 4, 8, 16, 32, 64), strict=True):
        ended(tally, float(seconds), outcome=Outcome(kind))
    tally.handed_back(JobHandedBack(delivery()))
    tally.lost(JobLost(delivery()))
    ((pair, row),) = tally.counting()
    assert pair == ("mail", WELCOME)
    outcomes = dict(zip(OUTCOMES, row, strict=False))
    assert outcomes == {
        "success": 2,
        "retry": 1,
        "snooze": 2,
        "dead": 1,
        "cancelled": 1,
        "released": 1,
        "lost": 1,
    }
    durations = row[len(OUTCOMES) : len(OUTCOMES) + BUCKETS + 1]
    assert (sum(durations[:-1]), durations[-1]) == (7, 127.0)


def test_reading_the_counts_of_every_queue_and_task_changes_none() -> None:
    """A thread reads them while the executor counts."""
    tally = Tally({WELCOME, RESIZE}, SharedTotals())
    for number, (queue, task) in enumerate(
        [("mail", WELCOME), ("mail", RESIZE), ("photos", WELCOME), ("photos", RESIZE)], start=1
    ):
        ended(tally, *[0.5] * number, task=task, queue=queue)
    rows = dict(tally.counting())
    assert {pair: row[0] for pair, row in rows.items()} == {
        ("mail", WELCOME): 1,
        ("mail", RESIZE): 2,
        ("photos", WELCOME): 3,
        ("photos", RESIZE): 4,
    }
    assert dict(tally.counting()) == rows
    assert {
        kind for tasks in tally.take().values() for counted in tasks.values() for kind in counted.runs
    } == {SUCCESS}


def test_a_thread_that_reads_while_counts_are_taken_finds_each_count_once() -> None:
    kept, read = threading.Event(), threading.Event()

    class Pausing(SharedTotals):
        """Pauses after it has added counts, until another thread has read them, if it can."""

        def keep(self, counting: Iterable[tuple[Pair, Row]]) -> None:
            super().keep(counting)
            kept.set()
            read.wait(0.3)

    totals = Pausing()
    tally = Tally({WELCOME}, totals)
    ended(tally, 0.02)
    taking = threading.Thread(target=tally.take)
    taking.start()
    assert kept.wait(10)
    with totals.lock:
        rows = totals.rows(tally.counting())
    read.set()
    taking.join()
    assert rows["mail", WELCOME][0] == 1


def test_the_servers_clock_is_known_from_the_last_fetch(now: list[float]) -> None:
    tally = Tally({WELCOME})
    assert tally.server_ms(now[0]) == 0
    taken(tally, delivery())
    now[0] += 90
    assert (tally.server_ms(now[0]), tally.server_ms(now[0] - 30)) == (NOW + 90_000, NOW + 60_000)


def test_a_wait_is_counted_from_when_the_job_was_due_until_its_first_start() -> None:
    tally = Tally({WELCOME})
    taken(tally, delivery(), delivery(due_ms=NOW - 1), delivery(due_ms=NOW - 30_000), delivery(fence=2))
    ((task, counted),) = tally.take()["mail"].items()
    assert (task, sparse(counted.waits), counted.runs) == (WELCOME, {0: 2, 13: 1}, {})


def test_a_clock_that_was_set_costs_no_more_than_a_wrong_bucket() -> None:
    tally = Tally({WELCOME})
    taken(tally, delivery(due_ms=NOW + 10**10), delivery(due_ms=0))
    assert sparse(tally.take()["mail"][WELCOME].waits) == {0: 1, 18: 1}


def test_600_tasks_are_500_and_other() -> None:
    names = [f"shop:task_{n}" for n in range(600)]
    tally = Tally(set(names))
    for name in [*names, *names]:
        ended(tally, 0.004, task=name)
    counted = runs_of(tally)
    assert counted == {name: {2: 2} for name in names[:500]} | {"other": {2: 200}}
    ended(tally, 0.004, task=names[550])
    ended(tally, 0.004, task=names[3])
    assert runs_of(tally) == {"other": {2: 1}, names[3]: {2: 1}}


def test_a_name_that_is_no_task_of_the_app_is_not_kept() -> None:
    tally = Tally({WELCOME})
    taken(tally, *(delivery(f"foreign:{n}") for n in range(700)), delivery())
    ended(tally, *[0.004] * 3, task="foreign:8")
    counted = tally.take()["mail"]
    assert ([*counted], [*counted.waits], [*counted.runs]) == (["other", WELCOME], [WELCOME], [])
    assert {task: sum(one.waits) for task, one in counted.items()} == {"other": 700, WELCOME: 1}


def test_what_finds_no_room_is_counted_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_COUNTED", 2)
    tally = Tally({WELCOME, RESIZE})
    for queue in ("a", "b", "c", "a"):
        for task in (WELCOME, RESIZE):
            ended(tally, 0.1, task=task, queue=queue)
    tally.taken(JobsTaken("c", [delivery()], NOW))
    assert {queue: [*tasks] for queue, tasks in tally.take().items()} == {"a": [WELCOME, RESIZE]}
    assert (tally.take_uncounted(), tally.take_uncounted()) == (5, 0)
    ended(tally, 0.1)
    assert (runs_of(tally), tally.take_uncounted()) == ({WELCOME: {6: 1}}, 0)


def test_what_finds_no_room_is_counted_anew_after_its_number_was_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "MOST_COUNTED", 1)
    tally = Tally({WELCOME, RESIZE})
    ended(tally, 0.1)
    for number in (1, 2, 3):
        ended(tally, *[0.1] * number, task=RESIZE)
        taken(tally, delivery(RESIZE))
        assert tally.take_uncounted() == number + 1
    assert list(tally.take()["mail"]) == [WELCOME]


def test_its_facts_are_the_times_of_the_last_ten_minutes(now: list[float]) -> None:
    tally = Tally({WELCOME, RESIZE})
    assert tally.facts() == {}
    ended(tally, *[0.004] * 10)
    tally.take()
    now[0] += 300
    ended(tally, *[0.02] * 4)
    ended(tally, *[0.02] * 3, task=RESIZE)
    ended(tally, *[0.02] * 3, queue="video")
    taken(tally, delivery())
    assert tally.facts() == {
        "run_times": {"count": 20, "p50": 0.005, "p95": 0.024},
        "wait_times": {"count": 1, "p50": 0.0005, "p95": 0.00095},
    }
    tally.take()
    now[0] += 301
    assert tally.facts()["run_times"] == {"count": 10, "p50": 0.018, "p95": 0.024}
    now[0] += 10**6
    assert tally.facts() == {}


def test_its_facts_are_of_all_tasks_together() -> None:
    tally = Tally({WELCOME, RESIZE})
    taken(tally, delivery(), delivery(RESIZE), delivery(RESIZE))
    assert tally.facts()["wait_times"] == {"count": 3, "p50": 0.0005, "p95": 0.00095}


def test_the_run_times_of_kept_tasks_stay_when_the_counts_are_taken() -> None:
    tally = Tally({WELCOME, RESIZE})
    tally.keep([WELCOME, RESIZE])
    ended(tally, 0.004, 0.004)
    ended(tally, 0.02, queue="video")
    ended(tally, 0.3, task=RESIZE, queue="video")
    for _ in range(2):
        assert kept(tally, WELCOME) == ({2: 2, 4: 1}, 3)
        assert kept(tally, RESIZE) == ({8: 1}, 1)
        tasks = {queue: [*tasks] for queue, tasks in tally.take().items()}
        assert tasks in ({"mail": [WELCOME], "video": [WELCOME, RESIZE]}, {})
    ended(tally, 0.004)
    assert kept(tally, WELCOME) == ({2: 3, 4: 1}, 4)


def test_of_the_run_times_that_are_kept_the_latest_count_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_KEPT", 4)
    tally = Tally({WELCOME})
    tally.keep([WELCOME])
    ended(tally, *[0.004] * 4)
    tally.take()
    assert kept(tally, WELCOME) == ({2: 4}, 4)
    ended(tally, *[0.02] * 6)
    tally.take()
    assert kept(tally, WELCOME) == ({2: 1, 4: 1}, 10)


def kept(tally: Tally, task: str) -> tuple[dict[int, float], int]:
    """The run times of a kept task by bucket, and their number."""
    runs = tally.runs_of(task)
    return sparse(runs.recent.counts), runs.number


def test_there_are_as_many_counts_as_buckets() -> None:
    tally = Tally({WELCOME})
    ended(tally, 10**9)
    assert len(tally.take()["mail"][WELCOME].run_times) == BUCKETS
    assert Counted({}, []).run_times == [0] * BUCKETS
