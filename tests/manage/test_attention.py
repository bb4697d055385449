"""What needs attention, in which words and in which order, and what does not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fennelq import ExecutorInfo, Group, QueueInfo, Schedule, ScheduleInfo, Status
from fennelq.manage.attention import Kind, Need, Urgency, in_a_sentence, needs
from fennelq.manage.queues.info import damaged
from fennelq.manage.watch import Snapshot
from fennelq.model.pause import QueuePause

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
EVIL = "\x1b[2J\u202eevil\n[red]{x}" + "A" * (1 << 20)


def ago(seconds: float) -> datetime:
    return NOON - timedelta(seconds=seconds)


def a_queue(name: str = "mail", **facts: Any) -> QueueInfo:
    known: dict[str, Any] = {"waiting": 0, "running": 0, "scheduled": 0, "retry": 0, "dead": 0}
    known |= {"lanes": {}, "ended": {}, "at": NOON}
    return QueueInfo(name=name, **(known | facts))


def an_executor(name: str = "web-1", state: str = "works", **facts: Any) -> ExecutorInfo:
    return ExecutorInfo(name, state, {"beat_ms": int(ago(1).timestamp() * 1000), **facts})


def a_group(first: datetime, **facts: Any) -> Group:
    known: dict[str, Any] = {"fingerprint": "3f9a21c0", "task": "shop:charge", "error_type": "Refused"}
    known |= {"reason": "failed", "message": "no money", "jobs": 12, "first": first, "newest": NOON}
    return Group(**(known | facts))


def a_schedule(**facts: Any) -> ScheduleInfo:
    known: dict[str, Any] = {
        "schedule": Schedule(
            name="nightly", task="shop:report", queue="mail", args=b"[[],{}]", every_ms=60_000
        ),
        "declared": True,
        "service": None,
        "service_seen": None,
        "paused": False,
        "next_run": NOON,
        "last_run": None,
        "last_job": None,
        "last_status": None,
        "run_count": 0,
        "waiting": 0,
        "skipped": 0,
        "last_error": None,
        "last_error_at": None,
    }
    return ScheduleInfo(**(known | facts))


def a_snapshot(*found: QueueInfo | ExecutorInfo, executors_known: bool = True) -> Snapshot:
    return Snapshot(
        queues={one.name: one for one in found if isinstance(one, QueueInfo)},
        executors={one.name: one for one in found if isinstance(one, ExecutorInfo)},
        rates={},
        seconds=0.001,
        executors_known=executors_known,
    )


def of(*found: QueueInfo | ExecutorInfo, **more: Any) -> list[Need]:
    return needs(a_snapshot(*found), now=NOON, **more)


def the_only(found: list[Need]) -> tuple[Kind, Urgency, str, str]:
    (need,) = found
    return need.kind, need.urgency, need.name, need.sentence


def test_a_fleet_at_work_needs_nothing() -> None:
    snapshot = a_snapshot(
        a_queue(waiting=7, running=3, dead=40, scheduled=2, waiting_since=ago(59), next_due=ago(14)),
        a_queue("default", max_waiting=100, waiting=79),
        an_executor(),
        an_executor("web-2", "draining"),
        an_executor("web-3", "blocked"),  # without the place of the code there is nothing to say
    )
    assert needs(snapshot, [a_group(ago(3601))], [a_schedule(next_run=ago(60))], now=NOON) == []
    assert in_a_sentence([], snapshot) == ("Nothing needs attention: 2 queues, 3 executors, 3 jobs running")


def test_executors_that_may_not_be_read_are_unknown_and_not_zero() -> None:
    snapshot = a_snapshot(a_queue(running=1), executors_known=False)
    assert in_a_sentence([], snapshot) == (
        "Nothing needs attention: 1 queue, an unknown number of executors, 1 job running"
    )


def test_the_sentence_has_the_most_urgent_need_and_the_number_of_others() -> None:
    found = of(a_queue(waiting=3, waiting_since=ago(700), running=1), a_queue("slow", waiting_since=ago(61)))
    assert [need.urgency for need in found] == [Urgency.URGENT, Urgency.SOON]
    assert in_a_sentence(found[:1], a_snapshot()) == (
        "Queue mail is late: its oldest job has been ready for 11 min; 3 wait, 1 run"
    )
    assert in_a_sentence(found, a_snapshot()).endswith("3 wait, 1 run (and 1 more)")


@pytest.mark.parametrize(
    ("queue", "kind", "urgency", "sentence"),
    [
        (
            a_queue(waiting=5, waiting_since=ago(61), running=2),
            "late",
            Urgency.SOON,
            "queue mail is late: its oldest job has been ready for 1 min; 5 wait, 2 run",
        ),
        (
            a_queue(scheduled=1, next_due=ago(16)),
            "late",
            Urgency.URGENT,
            "queue mail: a job has been due for 16 s, and no executor moves it",
        ),
        (
            a_queue(waiting=1, waiting_because=["no worker runs; start one with `fennelq worker`"]),
            "not served",
            Urgency.URGENT,
            "1 job waits in mail: no worker runs",
        ),
        (
            damaged("mail", "the key s is a string; DEL it"),
            "damaged",
            Urgency.URGENT,
            "queue mail is not served: the key s is a string; DEL it",
        ),
        (
            damaged("mail", "Redis refuses this", unknown=True),
            "unknown",
            Urgency.NOTE,
            "queue mail is unknown: Redis refuses this",
        ),
        (
            a_queue(max_waiting=100, waiting=60, in_lines=20, when_full="raise"),
            "full",
            Urgency.SOON,
            "queue mail is nearly full, 80 of 100 jobs wait",
        ),
        (
            a_queue(max_waiting=1000, waiting=1000, when_full="drop_oldest"),
            "full",
            Urgency.URGENT,
            "queue mail is full, 1,000 of 1,000 jobs wait: the oldest job is dropped for each new one",
        ),
    ],
)
def test_a_queue_that_needs_attention(queue: QueueInfo, kind: Kind, urgency: Urgency, sentence: str) -> None:
    assert the_only(of(queue)) == (kind, urgency, "mail", sentence)


def test_a_pause_is_one_note_although_jobs_wait_for_long() -> None:
    pause = QueuePause(consuming=True, enqueuing=False, who="ada", since=ago(90), why="no server")
    because = (
        "consuming of queue 'mail' is paused since 2026-11-19 11:58:30 UTC by ada: no server; "
        "`fennelq queue resume mail` ends the pause"
    )
    queue = a_queue(waiting=5, retry=1, waiting_since=ago(999), paused=pause, waiting_because=[because])
    (need,) = of(queue)
    assert need == Need(
        kind="paused",
        urgency=Urgency.NOTE,
        of="queue",
        name="mail",
        sentence="queue mail: consuming is paused since 2026-11-19 11:58:30 UTC by ada: no server; 6 jobs not started",
        advice="fennelq queue resume mail",
    )


def test_a_queue_that_only_refuses_callers_can_be_late() -> None:
    pause = QueuePause(consuming=False, enqueuing=True, who="ada", since=ago(90), why="")
    late, paused = of(a_queue(waiting=5, waiting_since=ago(999), paused=pause))
    assert (late.kind, late.urgency) == ("late", Urgency.URGENT)
    assert (paused.kind, paused.urgency) == ("paused", Urgency.NOTE)


def test_one_reason_for_a_thousand_queues_is_one_need() -> None:
    because = ["no worker runs; start one with `fennelq worker`"]
    (need,) = of(*(a_queue(f"q{n:04}", waiting=2, waiting_because=because) for n in range(1000)))
    assert need.sentence == (
        "2,000 jobs wait in q0000, q0001, q0002, q0003, q0004 and 995 more queues: no worker runs"
    )
    assert need.advice == "start one with `fennelq worker`"
    assert need.name == "q0000"


@pytest.mark.parametrize(
    ("executor", "kind", "urgency", "sentence"),
    [
        (
            an_executor(state="silent", beat_ms=int(ago(40).timestamp() * 1000)),
            "silent",
            Urgency.URGENT,
            "executor web-1 has not reported for 40 s",
        ),
        (
            an_executor(state="silent", beat_ms=None),
            "silent",
            Urgency.URGENT,
            "executor web-1 has not reported",
        ),
        (
            an_executor(state="ended: killed by SIGKILL"),
            "ended",
            Urgency.SOON,
            "executor web-1 has ended: killed by SIGKILL",
        ),
        (
            an_executor(state="blocked", blocked={"at": "a.py:3 f", "job": "shop:x (mail:1)", "seconds": 9}),
            "blocked",
            Urgency.URGENT,
            "executor web-1 runs no other job: code blocks its event loop for 9 s at a.py:3 f, in shop:x (mail:1)",
        ),
        (
            an_executor(stuck=2),
            "stuck",
            Urgency.SOON,
            "2 runs of executor web-1 go on although asked to stop",
        ),
    ],
)
def test_an_executor_that_needs_attention(
    executor: ExecutorInfo, kind: Kind, urgency: Urgency, sentence: str
) -> None:
    assert the_only(of(executor)) == (kind, urgency, "web-1", sentence)


def test_an_executor_that_ended_long_ago_is_no_news() -> None:
    ms = int(ago(901).timestamp() * 1000)
    assert of(an_executor(state="ended: killed by SIGKILL", beat_ms=ms)) == []


def test_a_new_error_is_a_group_whose_first_job_died_within_the_hour() -> None:
    (need,) = of(groups=[a_group(ago(3599)), a_group(ago(3601)), a_group(NOON, fingerprint="other")])
    assert (need.kind, need.of, need.name, need.urgency) == ("new error", "group", "3f9a21c0", Urgency.URGENT)
    assert need.sentence == ("new error, first 59 min ago: 12 jobs of shop:charge died of Refused: no money")


def test_a_schedule_that_is_due_and_does_not_run_is_missed_unless_it_is_paused() -> None:
    (need,) = of(schedules=[a_schedule(next_run=ago(61)), a_schedule(next_run=None, paused=True)])
    assert (need.kind, need.name, need.urgency) == ("missed", "nightly", Urgency.URGENT)
    assert need.sentence == "schedule nightly has been due for 1 min, and no executor has run it"


def test_a_schedule_whose_last_run_died_is_failing() -> None:
    info = a_schedule(last_status=Status.DEAD, last_error="KeyError: 'x'", last_job="mail:7")
    (need,) = of(schedules=[info, a_schedule(last_status=Status.SUCCESS, last_error="earlier")])
    assert (need.kind, need.urgency) == ("failing", Urgency.SOON)
    assert need.sentence == "the last run of schedule nightly died: KeyError: 'x'"
    assert need.advice == "fennelq job show mail:7"


def test_hostile_texts_are_escaped_and_cut() -> None:
    pause = QueuePause(consuming=True, enqueuing=True, who=EVIL, since=None, why=EVIL)
    found = of(
        a_queue(EVIL, waiting=1, waiting_because=[EVIL]),
        a_queue("paused", paused=pause),
        damaged(EVIL + "2", EVIL),
        an_executor(EVIL, "silent"),
        an_executor(EVIL + "2", f"ended: {EVIL}"),
        an_executor(EVIL + "3", "blocked", blocked={"at": EVIL, "job": EVIL, "seconds": 1}, stuck=1),
        groups=[a_group(NOON, fingerprint=EVIL, task=EVIL, error_type=EVIL, message=EVIL)],
        schedules=[
            a_schedule(last_status=Status.DEAD, last_error=EVIL, last_job=EVIL),
        ],
    )
    assert len(found) == 9
    assert all(need.advice.isprintable() and len(need.advice) < 400 for need in found)
    for need in found:
        assert need.sentence.isprintable()
        assert "\\x1b[2J\\u202eevil\\n[red]{x}" in need.sentence
        assert len(need.sentence) < 1500
    assert in_a_sentence(found, a_snapshot()).isprintable()
