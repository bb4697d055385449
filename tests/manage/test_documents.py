"""The JSON objects of `--json`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from fennelq import DeadLetter, Group, JobInfo, QueueInfo, ReplayReport, Schedule, ScheduleInfo, Status
from fennelq.manage import documents
from fennelq.manage.executors.info import ExecutorInfo
from fennelq.manage.jobs import JobAnswer, JobEnd
from fennelq.manage.server import ServerInfo
from fennelq.manage.words_of_time import in_words

NOW = datetime(2026, 11, 18, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ({"seconds": 0.4}, "now"),
        ({"seconds": -0.4}, "now"),
        ({"seconds": 5}, "in 5 s"),
        ({"seconds": -59}, "59 s ago"),
        ({"minutes": 4, "seconds": 30}, "in 4 min"),
        ({"minutes": -1}, "1 min ago"),
        ({"hours": 2}, "in 2 h"),
        ({"hours": 2, "minutes": 5}, "in 2 h 5 min"),
        ({"hours": -47, "minutes": -59}, "47 h 59 min ago"),
        ({"days": 3, "hours": 5}, "in 3 days"),
        ({"days": -400}, "400 days ago"),
    ],
)
def test_moments_are_put_in_words(later: dict[str, float], words: str) -> None:
    assert in_words(NOW + timedelta(**later), NOW) == words


def test_how_a_job_ended_has_a_result_or_an_error() -> None:
    well, ill = JobEnd("q:a", Status.SUCCESS, None), JobEnd("q:a", Status.DEAD, error="boom")
    assert documents.of_end(well) == {"id": "q:a", "status": Status.SUCCESS, "result": None}
    assert documents.of_end(ill) == {"id": "q:a", "status": Status.DEAD, "error": "boom"}


def test_an_answer_is_done_or_not() -> None:
    assert documents.of_answer(JobAnswer("q:a", True, "cancelled")) == {
        "id": "q:a",
        "done": True,
        "answer": "cancelled",
    }
    assert documents.of_answer(JobAnswer("q:a", False, "unknown", known=False))["done"] is False


ARGUMENTS: list[tuple[bytes, Any]] = [
    (b"", None),
    (b'[[1],{"a":2}]', [[1], {"a": 2}]),
    (b"\xff\x00", "[redacted]"),
    (b"[[1180591620717411303424,-1],{}]", [[2.0**70, -1], {}]),
    (b"[[1%b],{}]" % (b"0" * 400), [["1" + "0" * 400], {}]),
]


@pytest.mark.parametrize(("arguments", "document"), ARGUMENTS)
def test_arguments_are_json_where_they_can_be_read(arguments: bytes, document: object) -> None:
    job = JobInfo(id="q:1", task="t", queue="q", status=Status.SENT, arguments=arguments)
    of_job = documents.of_job(job)
    assert of_job["arguments"] == document
    assert orjson.loads(orjson.dumps(of_job))["arguments"] == document


def test_what_an_executor_reports_stands_beside_its_name_and_state() -> None:
    executor = ExecutorInfo("host-1", "works", {"running": 3, "of a later version": [1]})
    assert documents.of_executor(executor) == {
        "name": "host-1",
        "state": "works",
        "running": 3,
        "of a later version": [1],
    }


def test_a_server_that_reports_nothing_has_every_member_all_the_same() -> None:
    assert documents.of_server(ServerInfo(None, None, None, None)) == {
        "server": None,
        "memory": None,
        "memory_limit": None,
        "clients": None,
    }


def schedule_info(*, paused: bool = False, next_run: datetime | None = NOW) -> ScheduleInfo:
    return ScheduleInfo(
        schedule=Schedule(name="s", task="shop:report", queue="mail", args=b"[[],{}]", every_ms=60_000),
        declared=True,
        service="shop:shop",
        service_seen=NOW,
        paused=paused,
        next_run=next_run,
        last_run=NOW - timedelta(minutes=2),
        last_job="mail:1",
        last_status=Status.SUCCESS,
        run_count=1,
        waiting=0,
        skipped=0,
        last_error=None,
        last_error_at=None,
    )


def test_a_schedule_has_its_moments_in_iso_8601_and_in_words() -> None:
    document = documents.of_schedule(schedule_info(), NOW)
    assert (document["next_run"], document["next_in"]) == ("2026-11-18T09:00:00.000+00:00", "now")
    assert document["last_ago"] == "2 min ago"
    assert (document["every"], document["cron"], document["source"]) == (60.0, None, "code")


def test_a_schedule_is_active_paused_or_over() -> None:
    infos = [schedule_info(), schedule_info(paused=True), schedule_info(next_run=None)]
    assert [documents.of_schedule(info, NOW)["state"] for info in infos] == ["active", "paused", "over"]


def test_every_document_can_be_written_as_json() -> None:
    letter = DeadLetter(
        id="q:a",
        queue="q",
        task="t",
        error_type="E",
        message="m",
        reason="r",
        died_at=NOW,
        entry="1-0",
        fingerprint="0000beef",
    )
    group = Group(
        fingerprint="0000beef",
        task="t",
        error_type="E",
        reason="r",
        message="m",
        jobs=2,
        first=NOW,
        newest=NOW,
    )
    queue = QueueInfo(
        name="q", waiting=1, running=0, scheduled=0, retry=0, dead=0, lanes={"normal": 1}, ended={}
    )
    made = [
        documents.of_letter(letter),
        documents.of_group(group),
        documents.of_queue(queue),
        documents.of_report(ReplayReport(1, 2, 3, 4)),
        documents.of_schedule(schedule_info(), NOW),
        documents.of_tick(NOW, "UTC", NOW),
    ]
    for document in made:
        assert orjson.loads(orjson.dumps(document, default=documents.plain)).keys() == document.keys()
