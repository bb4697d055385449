"""The jobs that run, page by page: who has each, since when, and how far it has come."""

from __future__ import annotations

import pytest

from fennelq.broker import verbs
from fennelq.broker.keys import QUARANTINE
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verbs.survey import Run
from fennelq.model.outcome import Outcome
from fennelq.model.progress import Progress
from tests.broker.desk import LEASE_MS, READ, Desk, a_job, some_jobs
from tests.kit.clock import ServerClock
from tests.kit.server import Server

pytestmark = [pytest.mark.both_servers, pytest.mark.audit(unfinished=True)]

NOW = 1_800_000_000_000


def running(desk: Desk, limit: int = 500) -> list[Run]:
    """All of them, page by page. The script changes nothing."""
    before = desk.everything()
    found: list[Run] = []
    cursor = ""
    while True:
        page = desk.do(verbs.survey.running, cursor, limit)
        assert len(page.runs) <= limit
        found += page.runs
        cursor = page.cursor
        if not cursor:
            break
    assert desk.everything() == before
    return found


def test_a_queue_without_a_job_has_none_that_runs(desk: Desk) -> None:
    assert running(desk) == []
    desk.enqueue(*some_jobs(2))
    assert running(desk) == []


def test_a_damaged_number_of_tries_hides_no_other_run(desk: Desk) -> None:
    desk.executing(*some_jobs(3))
    desk.redis.hset(desk.keys.record("2"), "n", "what?")
    assert [(run.key, run.tries) for run in running(desk)] == [("1", 1), ("2", 1), ("3", 1)]


def test_a_job_that_runs_is_shown_with_all_that_is_known(desk: Desk, server_clock: ServerClock) -> None:
    server_clock.stop_at(NOW)
    desk.enqueue(a_job(task="app:resize"))
    desk.finish(desk.take(), Outcome("R", b"0", b"{}"))
    desk.do(verbs.queues.promote, 100)
    server_clock.pass_by(5000)
    (delivery,) = desk.take("berta")
    desk.redis.hset(desk.keys.record("1"), "P", '[2,1,3,10,"rows"]')
    desk.cancel("1", why="wrong picture")
    server_clock.pass_by(2000)
    desk.silence(delivery)
    page = desk.do(verbs.survey.running)
    assert page.now_ms == NOW + 7000
    (run,) = page.runs
    assert LEASE_MS <= run.silent_ms < LEASE_MS + 60_000
    assert run._replace(silent_ms=0) == Run(
        lane="s",
        entry=delivery.entry,
        executor="berta",
        silent_ms=0,
        key="1",
        task="app:resize",
        started_ms=NOW + 5000,
        tries=2,
        progress=Progress(3, 10, "rows"),
        stopping="wrong picture",
        is_copy=False,
    )


def test_a_job_without_any_of_that(desk: Desk) -> None:
    (delivery,) = desk.executing()
    (run,) = running(desk)
    assert (run.key, run.entry, run.tries, run.progress, run.stopping) == ("1", delivery.entry, 1, None, None)
    assert abs(desk.now() - (run.started_ms or 0)) < 60_000


def test_the_jobs_of_all_lanes_are_found_in_the_order_of_the_lanes(desk: Desk) -> None:
    (strayed,) = desk.executing()
    desk.redelivered(strayed.key, 3, QUARANTINE)
    desk.fetch("isolde", lanes=[QUARANTINE])
    desk.enqueue(*(a_job(name, priority=name) for name in ("low", "normal", "high")))
    desk.take()
    assert [(run.lane, run.key, run.executor) for run in running(desk)] == [
        ("s:high", "high", "anna"),
        ("s", "normal", "anna"),
        ("s:low", "low", "anna"),
        ("iso", "1", "isolde"),
    ]


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 500])
def test_pages_of_any_size_show_each_once(desk: Desk, limit: int) -> None:
    names = [(f"{lane}{n}", lane) for lane in ("high", "normal", "low") for n in range(2)]
    desk.enqueue(*(a_job(name, priority=lane) for name, lane in names))
    desk.take()
    assert [run.key for run in running(desk, limit)] == [name for name, _ in names]


@pytest.mark.audit(lost={"mail:1", "mail:2", "mail:3"})
def test_a_page_visits_at_most_so_many_entries_and_the_next_one_goes_on(desk: Desk) -> None:
    """Entries whose job has gone count as well: what a call costs is bounded."""
    desk.executing(*some_jobs(6))
    for key in ("1", "2", "3"):
        desk.redis.delete(desk.keys.record(key))
    first = desk.do(verbs.survey.running, "", 2)
    assert (first.runs, first.cursor != "") == ([], True)
    second = desk.do(verbs.survey.running, first.cursor, 2)
    assert [run.key for run in second.runs] == ["4"]
    assert [run.key for run in running(desk, 2)] == ["4", "5", "6"]


def test_a_job_that_ends_between_two_pages_hides_no_other(desk: Desk) -> None:
    first, second, *_ = desk.executing(*some_jobs(4))
    page = desk.do(verbs.survey.running, "", 2)
    desk.finish([first, second])
    assert [run.key for run in desk.do(verbs.survey.running, page.cursor, 2).runs] == ["3", "4"]


@pytest.mark.audit(lost={"mail:1", "mail:2", "mail:3"})
def test_what_is_left_of_a_job_does_not_run(desk: Desk) -> None:
    """A record, or an entry, that a person has deleted; a record of a wrong type."""
    _, second, _, _ = desk.executing(*some_jobs(4))
    desk.redis.delete(desk.keys.record("1"))
    desk.redis.xdel(desk.keys["s"], second.entry)
    desk.redis.delete(desk.keys.record("3"))
    desk.redis.set(desk.keys.record("3"), "x")
    assert [run.key for run in running(desk)] == ["4"]


def test_an_entry_of_a_job_that_is_elsewhere_by_now_does_not_run(desk: Desk) -> None:
    (delivery,) = desk.executing()
    desk.redis.hset(desk.keys.record("1"), mapping={"p": "s/1-1", "s": "Q"})
    assert running(desk) == []
    desk.redis.hset(desk.keys.record("1"), mapping={"p": f"s/{delivery.entry}", "s": "X"})
    assert [run.key for run in running(desk)] == ["1"]


def test_a_job_that_was_taken_and_not_started_has_no_start(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.read("anna")
    (run,) = running(desk)
    assert (run.key, run.executor, run.started_ms, run.started_at) == ("1", "anna", None, None)


def test_a_job_that_has_run_before_and_was_not_started_again_has_no_start(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.finish(desk.take(), Outcome("R", b"0", b"{}"))
    desk.do(verbs.queues.promote, 100)
    desk.read("berta")
    (run,) = running(desk)
    assert (run.executor, run.started_ms, run.tries) == ("berta", None, 2)


def test_a_second_copy_that_was_taken_and_not_started_has_no_start(desk: Desk) -> None:
    (delivery,) = desk.executing()
    desk.do(verbs.runs.double, "anna", [(delivery.lane, delivery.entry)])
    desk.read("berta")
    _, copy = running(desk)
    assert (copy.executor, copy.started_ms, copy.is_copy) == ("berta", None, True)


def test_a_record_without_a_task_is_shown_without_one(desk: Desk) -> None:
    desk.executing()
    desk.redis.hdel(desk.keys.record("1"), "t")
    assert [run.task for run in running(desk)] == [""]


def test_both_copies_of_a_job_are_shown_each_with_its_executor_and_start(
    desk: Desk, server_clock: ServerClock
) -> None:
    server_clock.stop_at(NOW)
    (delivery,) = desk.executing()
    server_clock.pass_by(1000)
    assert desk.do(verbs.runs.double, "anna", [(delivery.lane, delivery.entry)]) == [1]
    assert [(run.executor, run.is_copy) for run in running(desk)] == [("anna", False)]
    desk.take("berta")
    assert [(run.key, run.executor, run.started_ms, run.is_copy) for run in running(desk)] == [
        ("1", "anna", NOW, False),
        ("1", "berta", NOW + 1000, True),
    ]


def test_what_an_executor_writes_is_escaped_when_it_is_no_text(desk: Desk) -> None:
    desk.enqueue(a_job())
    desk.fetch("an\x1bna \u202e")
    desk.redis.hset(desk.keys.record("1"), mapping={"t": b"\xff", "P": "no progress"})
    (run,) = running(desk)
    assert (run.executor, run.task, run.progress) == ("an\x1bna \u202e", "\\xff", None)


@pytest.mark.audit(skip="a lane is of a wrong type")
def test_a_lane_of_a_wrong_type_hides_no_other(desk: Desk) -> None:
    desk.enqueue(a_job(), a_job("h", priority="high"))
    desk.take()
    desk.redis.delete(desk.keys["s:high"])
    desk.redis.set(desk.keys["s:high"], "x")
    assert [run.key for run in running(desk)] == ["1"]


def test_a_user_who_may_only_read_can_call_it(desk: Desk, server: Server) -> None:
    desk.executing(*some_jobs(2))
    with desk.as_viewer(server):
        assert [run.key for run in desk.do(verbs.survey.running).runs] == ["1", "2"]


@pytest.mark.parametrize("denied", ["evalsha_ro", "xpending", "xrange", "hmget"])
def test_a_user_who_may_not_use_one_of_its_commands_gets_an_error_that_tells_it(
    desk: Desk, server: Server, denied: str
) -> None:
    desk.executing()
    with desk.as_viewer(server, denied), pytest.raises(ReplyError, match="NOPERM") as refused:
        desk.do(verbs.survey.running)
    assert refused.value.word == "NOPERM"


def test_executors_that_share_a_queue_are_told_apart(desk: Desk) -> None:
    desk.enqueue(*some_jobs(4))
    for who in ("anna", "berta"):
        desk.fetch(who, free=2, lanes=READ)
    assert [(run.key, run.executor) for run in running(desk)] == [
        ("1", "anna"),
        ("2", "anna"),
        ("3", "berta"),
        ("4", "berta"),
    ]
