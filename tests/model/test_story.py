"""The story of a job is right for everything that can happen to it, and contains only what is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fennelq.model.because import Turn
from fennelq.model.fields import STATUSES
from fennelq.model.job import Event, JobFailure, JobInfo, Status
from fennelq.model.runs import Copy, Traces
from fennelq.model.story import Story, story

START = datetime(2026, 5, 18, 14, 2, 16, tzinfo=UTC)
ID = "mail:0199c0de7f21"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def job(status: Status, **facts: Any) -> JobInfo:
    """A job that was sent at 14:02:16."""
    known: dict[str, Any] = {"id": ID, "task": "shop.mail:welcome", "queue": "mail", "enqueued_at": START}
    return JobInfo(status=status, **(known | facts))


def ran(status: Status, began: float, **facts: Any) -> JobInfo:
    """A job whose latest run began so many seconds after it was sent."""
    return job(status, **({"started_at": at(began), "deliveries": 1} | facts))


def line(
    what: str, owner: str | None = "web-1", began: float = 1, ended: float = 3, more: str | None = None
) -> Event:
    return Event(at(ended), what, owner, at(began), more)


def story_of(info: JobInfo, *events: Event, on: str = "web-1", now: float = 60, **more: Any) -> Story:
    """The story when the latest run was on this executor."""
    traces = more.pop("traces", Traces(on))
    return story(info, events, at(now), traces, **more)


def sentence(info: JobInfo, *events: Event, **more: Any) -> str:
    return story_of(info, *events, **more).sentence


def texts(found: Story) -> list[str]:
    """What happened: seconds since the start, and the text."""
    return [
        f"{(line.at - START).total_seconds():g} {line.text}" if line.at else f"? {line.text}"
        for line in found.lines
    ]


def outcomes(found: Story) -> list[tuple[str | None, str, float | None]]:
    return [(run.executor, run.outcome, run.seconds) for run in found.runs]


REFUSED = JobFailure("ConnectionError", "connection refused")

# How it ended, and why it ran twice


def test_a_plain_success() -> None:
    info = ran(Status.SUCCESS, 0.9, ended_at=at(17.3), tries=1)
    plain = story_of(info)
    assert plain.sentence == "It succeeded on web-1 after 16 s."
    assert outcomes(plain) == [("web-1", "succeeded", 16.4)]
    assert texts(plain) == [
        "0 Sent to queue 'mail'",
        "0.9 First run begins on web-1, 900 ms after it was sent",
        "17.3 Succeeded after 16 s",
    ]


def test_a_retry_and_then_success() -> None:
    info = ran(Status.SUCCESS, 8, ended_at=at(8.2), tries=2, deliveries=2, error=REFUSED)
    twice = story_of(info, line("failed", more="ConnectionError"), on="web-2")
    assert twice.sentence == (
        "It succeeded on web-2 in its second run, which took 200 ms. "
        "The first run failed (ConnectionError: connection refused)."
    )
    assert outcomes(twice) == [("web-1", "failed", 2.0), ("web-2", "succeeded", 0.2)]
    assert texts(twice) == [
        "0 Sent to queue 'mail'",
        "1 First run begins on web-1, 1.0 s after it was sent",
        "3 It failed after 2.0 s: ConnectionError: connection refused",
        "8 Second run begins on web-2",
        "8.2 Succeeded after 200 ms",
    ]


def test_several_failures_are_counted() -> None:
    info = ran(Status.SUCCESS, 30, ended_at=at(31), tries=4, deliveries=4, error=REFUSED)
    events = [
        line("failed", began=1, ended=2, more="ValueError"),
        line("failed", began=3, ended=4, more="ConnectionError"),
        line("recovered", began=5, ended=20, more="SIGKILL"),
    ]
    assert sentence(info, *events) == (
        "It succeeded on web-1 in its fourth run, which took 1.0 s. Of its 3 earlier runs, "
        "2 failed (last: ConnectionError: connection refused) and 1 was lost with the executor (SIGKILL)."
    )


def test_kill_9() -> None:
    info = ran(Status.SUCCESS, 30.2, ended_at=at(46.6), tries=1, deliveries=2)
    killed = story_of(info, line("recovered", "web-3.812", 0.9, 30.1, "SIGKILL"), on="web-1.77")
    assert killed.sentence == (
        "It succeeded on web-1.77 in its second run, which took 16 s. Executor web-3.812 was killed (SIGKILL) during "
        "the first run; when its lease had run out, web-1.77 took the job over."
    )
    assert outcomes(killed) == [("web-3.812", "lost", 29.2), ("web-1.77", "succeeded", 16.4)]
    assert texts(killed)[2] == ("30.1 Taken over after 29 s, because its executor was killed (SIGKILL)")


@pytest.mark.parametrize(
    ("death", "words"),
    [
        ("exit code 3", "ended (exit code 3)"),
        ("killed by its supervisor: it was silent", "was killed by its supervisor: it was silent"),
    ],
)
def test_an_executor_that_ended_in_another_way(death: str, words: str) -> None:
    info = ran(Status.EXECUTING, 30, deliveries=2, owner="web-2")
    assert sentence(info, line("recovered", more=death), on="web-2", now=35) == (
        f"It has been running for 5 s on web-2. Executor web-1 {words} during the first run; "
        "when its lease had run out, web-2 took the job over."
    )


def test_sigstop_and_a_lost_lease() -> None:
    info = ran(Status.SUCCESS, 30, ended_at=at(31), tries=1, deliveries=2)
    assert sentence(info, line("recovered", "web-3"), on="web-2") == (
        "It succeeded on web-2 in its second run, which took 1.0 s. Executor web-3 did not renew its lease during the "
        "first run; when its lease had run out, web-2 took the job over. If it goes on, its outcome is refused."
    )


def test_a_job_that_was_taken_over_and_waits() -> None:
    info = ran(Status.SENT, 1, place="s/9-0", waiting_because="no worker runs")
    assert sentence(info, line("recovered", more="SIGKILL")) == (
        "It waits for its next run: no worker runs. Executor web-1 was killed (SIGKILL) during its run, "
        "and its lease has run out."
    )


def test_a_release_by_a_deploy() -> None:
    info = ran(Status.SUCCESS, 4, ended_at=at(5), tries=1, deliveries=2)
    assert sentence(info, line("stopped"), on="web-2") == (
        "It succeeded on web-2 in its second run, which took 1.0 s. "
        "Executor web-1 was stopped, as by a deploy, and handed the first run back, which costs no try."
    )


def test_a_lost_reply() -> None:
    info = ran(Status.EXECUTING, 4, deliveries=2, owner="web-1")
    assert sentence(info, line("stranded", "web-0"), now=10) == (
        "It has been running for 6 s on web-1. "
        "A reply of Redis to executor web-0 was lost before the first run began, which costs no try."
    )


def test_a_snooze() -> None:
    info = ran(Status.SCHEDULED, 1, due_at=at(360), place="sched")
    snoozed = story_of(info, now=60)
    assert snoozed.sentence == (
        "It is scheduled, due in 5 min (2026-05-18 14:08:16 UTC). "
        "Its run was put off: snoozed, or refused by a rate."
    )
    assert outcomes(snoozed) == [("web-1", "put off", None)]
    assert texts(snoozed) == ["0 Sent to queue 'mail'", "1 First run begins on web-1"]


def test_success_after_snoozes_which_leave_no_line() -> None:
    info = ran(Status.SUCCESS, 50, ended_at=at(51), tries=1, deliveries=3, due_at=at(49))
    assert sentence(info) == (
        "It succeeded on web-1 in its last run, which took 1.0 s. 2 more runs began, and left no line in its "
        "history, as runs that are snoozed or refused by a rate."
    )
    assert sentence(replace(info, deliveries=2)).endswith(
        "One more run began, and left no line in its history, as runs that are snoozed or refused by a rate."
    )


def test_quarantine() -> None:
    events = [line("recovered", f"web-{n}", n, n + 20, "SIGSEGV") for n in (1, 2)]
    info = ran(Status.EXECUTING, 50, deliveries=3, owner="iso-1")
    assert sentence(info, *events, traces=Traces("iso-1", isolated=True), now=52) == (
        "It has been running for 2 s on iso-1 (in quarantine: alone in an executor of its own). "
        "Of its 2 earlier runs, 2 were lost with the executor (last: SIGSEGV)."
    )


def test_a_crash_loop() -> None:
    events = [line("recovered", f"web-{n}", n, n + 20, "SIGKILL") for n in range(1, 5)]
    message = "the executor died or fell silent 4 times while it ran this job; last: SIGKILL"
    info = ran(
        Status.DEAD,
        4,
        deliveries=4,
        ended_at=at(24),
        reason="crash_loop",
        error=JobFailure("CrashLoop", message, reason="crash_loop"),
    )
    dead = story_of(info, *events, on="web-4")
    assert dead.sentence == f"It died, because {message}. `fennelq job retry {ID}` runs it again."
    assert texts(dead)[-1] == f"24 Died: CrashLoop: {message}"


def test_a_replay() -> None:
    info = ran(Status.SUCCESS, 100, ended_at=at(101), tries=1, deliveries=2, replays=1, error=REFUSED)
    replayed = story_of(info, line("replayed", ended=90), on="web-2")
    assert replayed.sentence == (
        "It succeeded on web-2 in its second run, which took 1.0 s. "
        "It died after the first run (ConnectionError: connection refused). "
        "It was dead, and was replayed once, at 2026-05-18 14:03:46 UTC."
    )
    assert texts(replayed)[2:] == [
        "90 The dead job was replayed, with all its tries",
        "100 Second run begins on web-2",
        "101 Succeeded after 1.0 s",
    ]


def test_two_replays() -> None:
    info = ran(Status.SENT, 50, deliveries=2, replays=2, place="s/1-0", waiting_because="no worker runs")
    events = [line("replayed", ended=9), line("replayed", began=50, ended=60)]
    assert sentence(info, *events) == (
        "It waits for its next run: no worker runs. Of its 2 earlier runs, 2 died. "
        "It was dead, and was replayed twice, the last time at 2026-05-18 14:03:16 UTC."
    )


def test_a_cancel_in_the_queue() -> None:
    cancelled = story_of(job(Status.CANCELLED, ended_at=at(5), reason="too slow"), traces=Traces())
    assert cancelled.sentence == "It was cancelled before it began (too slow)."
    assert texts(cancelled) == ["0 Sent to queue 'mail'", "5 Cancelled (too slow)"]
    assert sentence(job(Status.CANCELLED, ended_at=at(5), reason="cancelled"), traces=Traces()) == (
        "It was cancelled before it began."
    )


def test_a_cancel_during_the_run() -> None:
    info = ran(Status.CANCELLED, 1, ended_at=at(4), reason="too slow")
    cancelled = story_of(info, traces=Traces("web-1", asked=True))
    assert cancelled.sentence == "It was cancelled during its run on web-1, after 3.0 s (too slow)."
    assert texts(cancelled)[-1] == "4 Cancelled after 3.0 s (too slow)"


def test_a_cancel_between_two_runs() -> None:
    info = ran(Status.CANCELLED, 1, ended_at=at(9), reason="cancelled", error=REFUSED)
    assert sentence(info, line("failed", more="ConnectionError")) == (
        "It was cancelled while it waited for its next run. Its run failed (ConnectionError: connection refused)."
    )


def test_a_cancel_of_a_run_that_was_lost() -> None:
    info = ran(Status.CANCELLED, 1, ended_at=at(20), reason="too slow")
    event = line("recovered", ended=20, more="SIGKILL")
    assert sentence(info, event, traces=Traces("web-1", asked=True)) == (
        "It was cancelled (too slow): it was asked to stop, and its run was lost or handed back. "
        "Executor web-1 was killed (SIGKILL) during its run, and its lease has run out."
    )


def test_expiry() -> None:
    info = job(Status.CANCELLED, ended_at=at(70), reason="expired", expires_at=at(60))
    expired = story_of(info, traces=Traces())
    assert expired.sentence == "It expired, because no executor began it before 2026-05-18 14:03:16 UTC."
    assert texts(expired)[-1] == "70 Expired"
    assert sentence(replace(info, expires_at=None), traces=Traces()) == (
        "It expired, because no executor began it in time."
    )


def test_an_unknown_task() -> None:
    unknown = "unknown task 'shop:ad': did you mean 'shop:add'?"
    because = f"the workers that took it could not run it (is their code older than the sender's?): {unknown}"
    info = ran(Status.SCHEDULED, 1, due_at=at(90), place="sched", deliveries=4, waiting_because=because)
    waiting = story_of(info, line("unknown_task", more=unknown), now=60)
    assert waiting.sentence == (
        f"It waits for its next run: {because} 3 more runs began, and left no line in its history, "
        "as further runs by code that is too old."
    )
    dead = ran(
        Status.DEAD, 1, ended_at=at(3), reason="unknown_task", error=JobFailure("UnknownTask", unknown)
    )
    assert sentence(dead, line("unknown_task", more=unknown)) == (
        f"It died, because no worker could run it in time: {unknown} `fennelq job retry {ID}` runs it again."
    )
    late = ran(Status.SUCCESS, 9, ended_at=at(10), tries=1, deliveries=2)
    assert sentence(late, line("unknown_task", more=unknown), on="web-2") == (
        "It succeeded on web-2 in its second run, which took 1.0 s. "
        f"The code of executor web-1 was too old for it ({unknown})."
    )


def test_a_second_copy_that_was_first() -> None:
    info = ran(Status.SUCCESS, 6, ended_at=at(7), tries=1, deliveries=2)
    events = [line("doubled", "web-1", 1, 5), line("outrun", "web-1", 1, 7)]
    copied = story_of(info, *events, on="web-2")
    assert copied.sentence == (
        "It succeeded on web-2 in its second run, which took 1.0 s. A second copy was sent, because a run took "
        "unusually long. The run on web-1 was stopped, because the other copy was first."
    )
    assert outcomes(copied) == [("web-1", "outrun", 6.0), ("web-2", "succeeded", 1.0)]
    assert texts(copied) == [
        "0 Sent to queue 'mail'",
        "1 First run begins on web-1, 1.0 s after it was sent",
        "5 A second copy was sent, because the run takes unusually long",
        "6 Second run begins on web-2",
        "7 It was stopped: the other copy was first after 6.0 s",
        "7 Succeeded after 1.0 s",
    ]


def test_two_copies_that_run() -> None:
    info = ran(Status.EXECUTING, 1, deliveries=2, owner="web-1")
    both = story_of(info, line("doubled", ended=5), traces=Traces("web-1", copy=Copy("web-2", at(6))), now=11)
    assert both.sentence == (
        "It has been running for 10 s on web-1. A second copy was sent, because a run took unusually long. "
        "The other copy runs on web-2."
    )
    assert outcomes(both) == [("web-1", "running", None), ("web-2", "running", None)]
    assert sentence(
        replace(info, deliveries=1), line("doubled", ended=5), traces=Traces("web-1", copy=Copy(None, None))
    ).endswith("It waits for another executor.")


def test_a_second_copy_that_failed() -> None:
    info = ran(Status.SUCCESS, 1, ended_at=at(9), tries=1, deliveries=2)
    events = [line("doubled", ended=5), line("failed", "web-2", 6, 7, "ValueError")]
    assert sentence(info, *events) == (
        "It succeeded on web-1 in its first run, which took 8.0 s. A second copy was sent, because a run took "
        "unusually long. The second run failed (ValueError)."
    )


@pytest.mark.parametrize(
    ("reason", "error", "words"),
    [
        ("failed", JobFailure("shop.CardRefused", "no money"), "after 6 tries: shop.CardRefused: no money"),
        (
            "timeout",
            JobFailure("TimeoutError", "1 s"),
            "after 6 tries, because its run took too long: TimeoutError: 1 s",
        ),
        ("rejected", JobFailure("Reject", "no"), "because the task has rejected it: Reject: no"),
        ("bad_payload", JobFailure("E", "x"), "because its arguments do not fit the task: E: x"),
        ("bad_result", JobFailure("E", "x"), "because its result cannot be stored: E: x"),
        ("of tomorrow {x}", JobFailure("E", "{y}"), "(of tomorrow {x}): E: {y}"),
    ],
)
def test_why_it_is_dead(reason: str, error: JobFailure, words: str) -> None:
    info = ran(Status.DEAD, 1, ended_at=at(2), tries=6, reason=reason, error=error)
    dead = sentence(info).replace("It died, ", "It died ")
    assert dead == f"It died {words}. `fennelq job retry {ID}` runs it again."


def test_a_job_that_was_dropped_from_a_full_queue() -> None:
    error = JobFailure("Dropped", "the queue was full (max_waiting is 9), and this was its oldest job")
    dropped = story_of(job(Status.DEAD, ended_at=at(2), reason="dropped", error=error), traces=Traces())
    assert dropped.sentence == f"It was dropped: {error.message}. `fennelq job retry {ID}` runs it again."
    assert dropped.runs == ()


# Why not yet, and what has it


def test_due_later() -> None:
    assert sentence(job(Status.SCHEDULED, place="sched", due_at=at(3060)), now=60) == (
        "It is scheduled, due in 50 min (2026-05-18 14:53:16 UTC)."
    )


def test_the_next_try_is_due_later() -> None:
    info = ran(Status.RETRY, 1, tries=1, place="retry", due_at=at(65), error=REFUSED)
    waiting = story_of(info, line("failed", more="ConnectionError"), now=60)
    assert waiting.sentence == (
        "Try 1 has failed (ConnectionError: connection refused), the next one is due in 5 s (2026-05-18 14:03:21 UTC)."
    )


@pytest.mark.parametrize(
    "reason",
    [
        "consuming of queue 'mail' is paused since 2026-05-18 14:00:00 UTC by anna@web-1: the mail server is down; "
        "`fennelq queue resume mail` ends the pause",
        "no worker serves queue 'mail' (the running ones serve: default); start one with `fennelq worker -q mail`, "
        "or without -q for every queue",
        "it waits for the limit account/17, with 3 others before it; held by mail:a, mail:b",
    ],
)
def test_what_must_be_solved_first_is_in_the_sentence(reason: str) -> None:
    info = job(Status.SENT, place="s/1-0", waiting_because=reason)
    assert sentence(info, traces=Traces()) == f"It has not begun yet: {reason}."


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        (Turn(0, False, 1), "it is the next in queue 'mail'; 1 executor serves it"),
        (Turn(0, False, None), "it is the next in queue 'mail'"),
        (
            Turn(1, False, 2),
            "it waits for its turn in queue 'mail': 1 job starts before it; 2 executors serve it",
        ),
        (
            Turn(1200, False, 2, 5.0, 900),
            "it waits for its turn in queue 'mail': 1,200 jobs start before it; 2 executors serve it. "
            "At the rate of the last 15 min, that takes about 4 min",
        ),
        (
            Turn(500, True, 2, 0.5, 700),
            "it waits for its turn in queue 'mail': more than 500 jobs start before it; 2 executors serve it. "
            "At the rate of the last 12 min, that takes more than 17 min",
        ),
    ],
)
def test_simply_not_its_turn(turn: Turn, words: str) -> None:
    info = job(Status.SENT, place="s/1-0")
    assert sentence(info, traces=Traces(), turn=turn) == f"It has not begun yet: {words}."


def test_a_job_that_waits_for_reasons_that_are_not_known() -> None:
    assert sentence(job(Status.SENT), traces=Traces()) == "It has not begun yet, and is in queue 'mail'."


def test_a_run_that_goes_on() -> None:
    info = ran(Status.EXECUTING, 1, owner="web-1", tries=1)
    assert sentence(info, now=13) == "It has been running for 12 s on web-1."
    assert sentence(replace(info, stopping="too slow"), now=13) == (
        "It has been running for 12 s on web-1, and was asked to stop (too slow)."
    )
    assert sentence(info, now=13, gone="ended: SIGKILL") == (
        "It was started 12 s ago on web-1, which does not answer any more (ended: SIGKILL); "
        "another executor takes the job over when its lease has run out."
    )


def test_a_status_of_a_later_version() -> None:
    assert sentence(job(Status.UNKNOWN)) == "Its status is not known to this version of fennelq."


# Only what is known


def test_without_more_than_the_record_the_executor_is_left_out() -> None:
    info = ran(Status.SUCCESS, 1, ended_at=at(2), tries=1)
    assert story(info, [], at(9)).sentence == "It succeeded after 1.0 s."
    assert story(job(Status.SUCCESS), [], at(9)).sentence == "It succeeded."


def test_a_line_of_a_later_version_is_shown_as_it_is() -> None:
    info = ran(Status.EXECUTING, 9, deliveries=2, owner="web-1")
    later = story_of(info, line("teleported", more="to Mars"), Event(at(5), "polished"), now=10)
    assert later.sentence == (
        "It has been running for 1 s on web-1. The first run on executor web-1: teleported (to Mars)."
    )
    assert texts(later)[2:4] == ["3 teleported after 2.0 s: to Mars", "5 polished"]


def test_a_clock_that_is_set_back_changes_no_order_and_makes_no_negative_time() -> None:
    info = ran(Status.SUCCESS, -3600, ended_at=at(-7200), tries=2, deliveries=2)
    jumped = story_of(info, line("failed", began=1, ended=-10, more="ValueError"))
    assert jumped.sentence == "It succeeded on web-1 in its second run. The first run failed (ValueError)."
    assert [run.seconds for run in jumped.runs] == [None, None]
    assert [line.text for line in jumped.lines] == [
        "Sent to queue 'mail'",
        "First run begins on web-1, 1.0 s after it was sent",
        "It failed: ValueError",
        "Second run begins on web-1",
        "Succeeded",
    ]
    running = ran(Status.EXECUTING, 1, owner="web-1")
    assert sentence(running, now=-9999) == "It has been running for 0 s on web-1."


HOSTILE = "\x1b[2J\u202egnirts\n\t{0} {error} %s " + "x" * (1 << 20)


def test_hostile_texts_are_cut_and_escaped() -> None:
    """Also in the names of executors, and in what an earlier line of the history has."""
    error = JobFailure(HOSTILE, HOSTILE)
    infos = [
        ran(Status.DEAD, 1, ended_at=at(2), reason=HOSTILE, error=error),
        ran(Status.DEAD, 1, ended_at=at(2), reason="failed", error=error),
        ran(Status.RETRY, 1, place="retry", due_at=at(5), error=error),
        ran(Status.CANCELLED, 1, ended_at=at(2), reason=HOSTILE),
        job(Status.SENT, waiting_because=HOSTILE),
        ran(Status.EXECUTING, 9, owner=HOSTILE, stopping=HOSTILE),
    ]
    for info in infos:
        for what in ("failed", "recovered", HOSTILE):
            hostile = story_of(info, line(what, HOSTILE, more=HOSTILE), on=HOSTILE)
            shown = [hostile.sentence, *(one.text for one in hostile.lines)]
            shown += [f"{run.executor}{run.outcome}{run.more}" for run in hostile.runs]
            assert all(text.isprintable() and len(text) < 5000 for text in shown), shown


moments = st.one_of(st.none(), st.integers(-10, 10).map(at))
texts_of_users = st.one_of(st.none(), st.text(max_size=20))
whats = st.sampled_from(
    [
        "failed",
        "recovered",
        "stopped",
        "stranded",
        "outrun",
        "doubled",
        "replayed",
        "unknown_task",
        "dropped",
        "?",
    ]
)


@given(
    st.sampled_from([*STATUSES.values(), Status.UNKNOWN]),
    st.lists(
        st.builds(
            Event,
            st.integers(-10, 10).map(at),
            whats,
            st.sampled_from([None, "a", "b"]),
            moments,
            texts_of_users,
        ),
        max_size=6,
    ),
    st.fixed_dictionaries(
        {"started_at": moments, "ended_at": moments, "due_at": moments, "reason": texts_of_users},
        optional={"error": st.builds(JobFailure, st.text(), st.text()), "deliveries": st.integers(0, 9)},
    ),
    st.builds(Traces, st.sampled_from([None, "a", "b"]), st.booleans(), st.booleans(), st.just(None)),
)
def test_any_record_and_history_have_a_story(
    status: Status, events: Sequence[Event], facts: dict[str, Any], traces: Traces
) -> None:
    made = story(job(status, **facts), events, at(5), traces)
    assert made.sentence.endswith((".", "?", "!", "…"))
    assert made.sentence.isprintable()
    assert [run.number for run in made.runs] == [*range(1, len(made.runs) + 1)]
    assert all(run.outcome for run in made.runs)
