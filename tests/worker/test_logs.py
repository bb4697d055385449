"""Logs: every line about a job names it and why it failed, and no line shows arguments or results."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import termios
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest

from fennelq import App, TaskFailed
from tests.kit.jobs import altered
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.waiting import aeventually, eventually
from tests.worker import shop, talkative
from tests.worker.conftest import Workers
from tests.worker.shop import task_of

ABOUT_JOBS = ("job_", "lease_lost")
HERE = f"{talkative.__name__}:"
TALKATIVE = f"{HERE}app"


def lines(worker: Process) -> list[dict[str, Any]]:
    """Its log so far; each line is JSON."""
    return [json.loads(line) for line in worker.text.splitlines()]


def ends(worker: Process) -> Iterator[dict[str, Any]]:
    return (line for line in lines(worker) if line["event"].startswith(ABOUT_JOBS))


def events_of(worker: Process, job_id: str) -> list[str]:
    """What was logged about a job so far."""
    return [line["event"] for line in lines(worker) if line.get("job_id") == job_id]


async def test_every_line_about_a_job_names_job_task_queue_and_try(
    workers: Workers, app: App, client: App
) -> None:
    worker = workers()
    results = [
        await task_of(app, shop.double).delay(1),
        await task_of(app, shop.whisper).delay("a", "b", fail=True),
        await task_of(app, shop.whisper).options(retries=1, queue="mail").delay("a", "b", fail=True),
        await client.send("shop:missing"),
    ]
    events = ["job_succeeded", "job_died", "job_retries", "task_unknown"]
    eventually(lambda: {line["event"] for line in lines(worker)} >= set(events))
    assert await results[3].cancel()
    worker.term()
    assert worker.returncode() == 0
    about = list(ends(worker))
    assert len(about) >= 3
    for line in about:
        assert {"job_id", "task", "queue", "tries", "timestamp", "level"} <= line.keys()
        assert line["job_id"] in {result.id for result in results}
        assert line["queue"] == line["job_id"].partition(":")[0]
    tries = {line["event"]: line["tries"] for line in about}
    assert (tries["job_succeeded"], tries["job_retries"]) == (1, 1)


async def test_arguments_and_results_never_appear_in_any_line(workers: Workers, app: App) -> None:
    """What a task's own code writes into the message of its exception is another matter: see log_errors."""
    worker = workers("--log-level", "debug", "--log-errors", "type")
    whisper = task_of(app, shop.whisper)
    secretive = whisper.options(headers={"token": "s3cret-header"}, key="s3cret-key")
    assert (
        await (await secretive.delay("s3cret-argument", "s3cret-result")).get(timeout=30) == "s3cret-result"
    )
    with pytest.raises(TaskFailed, match="s3cret"):
        await (await whisper.delay("s3cret-argument", "s3cret-result", fail=True)).get(timeout=30)
    too_long = await app.client.send(altered(whisper.job("x", "y"), args=b'[["s3cret-argument",5],{}]'))
    with pytest.raises(TaskFailed):
        await too_long.get(timeout=30)
    eventually(lambda: sum(1 for _ in ends(worker)) == 3)
    worker.term()
    assert worker.returncode() == 0
    assert "s3cret" not in worker.text


async def test_tracebacks_show_neither_arguments_nor_results_nor_local_variables(
    workers: Workers, client: App
) -> None:
    worker = workers("--log-level", "debug", app=TALKATIVE)
    sent = [
        await client.send(f"{HERE}{name}", "s3cret-argument")
        for name in ("talk", "talk_in_thread", "lie", "fail")
    ]
    last = ["job_succeeded", "job_succeeded", "new_error", "new_error"]
    eventually(
        lambda: [events_of(worker, job.id)[-1:] for job in sent] == [[event] for event in last], within=15
    )
    worker.term()
    assert worker.returncode() == 0
    assert worker.text.count("Traceback (most recent call last)") >= 5
    assert "s3cret" not in worker.text


async def test_the_first_line_names_the_app_redis_the_queues_and_the_processes(
    workers: Workers, server: Server
) -> None:
    worker = workers("-p", "2", "-c", "5", "-q", "mail,default")
    first = json.loads(worker.wait_for("worker_started"))
    assert lines(worker)[0] == first
    assert "shop" in first["app"]
    assert f"{shop.__name__}:app" in first["app"]
    assert str(server.port) in first["redis"]
    assert first["queues"] == "mail,default"
    assert first["processes"] == "2 x 5"


async def test_a_queue_that_nothing_knows_is_named_in_a_warning_with_those_that_are_known(
    workers: Workers,
) -> None:
    worker = workers("-q", "default,nosuch")
    line = json.loads(worker.wait_for("queues_unknown"))
    assert (line["level"], line["unknown"]) == ("warning", "nosuch")
    assert "default" in line["known"].split(", ")
    assert worker.text.count("queues_unknown") == 1


async def test_no_warning_names_a_queue_to_which_jobs_were_sent(workers: Workers, app: App) -> None:
    result = await task_of(app, shop.double).options(queue="later").delay(4)
    worker = workers("-q", "later")
    assert await result.get(timeout=30) == 8
    assert "queues_unknown" not in worker.text


async def test_a_password_is_never_shown(workers: Workers, spawn: Spawner) -> None:
    password = "open sesame: tonight?"
    with Server(password=password) as guarded:
        worker = workers(FENNELQ_REDIS_URL=guarded.url)
        first = json.loads(worker.wait_for("worker_started"))
        assert first["redis"] == f"redis://:***@127.0.0.1:{guarded.port}/0"
        async with shop.app_of(redis_url=guarded.url) as app:
            assert await (await task_of(app, shop.double).delay(4)).get(timeout=30) == 8
        guarded.kill()
        worker.wait_for("trouble")
        guarded.start()
        worker.term()
        worker.returncode()
        assert "sesame" not in worker.text
        assert quote(password) not in worker.text


async def test_a_wrong_password_ends_the_worker_or_is_logged_without_showing_it(workers: Workers) -> None:
    with Server(password="open sesame") as guarded:
        worker = workers(FENNELQ_REDIS_URL=guarded.url.replace("open%20sesame", "shut%20sesame"))
        eventually(lambda: "WRONGPASS" in worker.text)
        assert "sesame" not in worker.text


async def test_below_warning_jobs_that_succeed_are_not_worth_a_line(workers: Workers, app: App) -> None:
    worker = workers("--log-level", "warning")
    assert await (await task_of(app, shop.double).delay(1)).get(timeout=30) == 2
    with pytest.raises(TaskFailed):
        await (await task_of(app, shop.whisper).delay("a", "b", fail=True)).get(timeout=30)
    worker.wait_for("job_died")
    worker.term()
    assert worker.returncode() == 0
    assert {line["event"] for line in lines(worker)} == {"job_died", "new_error"}


async def test_on_a_console_no_name_out_of_redis_drives_the_terminal(workers: Workers, app: App) -> None:
    hostile = "shop:\x1b[2J\x1b]0;owned\x07\u202egnp"
    job = altered(task_of(app, shop.double).job(1), task=hostile)
    worker = workers("--log-format", "console")
    result = await app.client.send(job)
    line = worker.wait_for("task_unknown")
    assert "\\x1b[2J\\x1b]0;owned\\x07\\u202egnp" in line
    assert {c for c in line if not c.isprintable()} == set()
    # The line is written before Redis has put the job aside.
    await aeventually(result.cancel)


# Why a try failed


async def test_in_a_pipe_a_failed_try_has_its_reason_its_place_and_the_time_of_the_next(
    workers: Workers, client: App
) -> None:
    worker = workers(app=TALKATIVE)
    died = await client.send(f"{HERE}fail", "x")
    eventually(lambda: "job_died" in events_of(worker, died.id))
    about = [line for line in lines(worker) if line.get("job_id") == died.id]
    tries = [line for line in about if line["event"] != "new_error"]
    file, line = talkative.__file__, talkative.refuse.__code__.co_firstlineno + 2
    for number, found in enumerate(tries, 1):
        assert (found["error"], found["message"]) == ("ConnectionError", "the bank hung up\x1b[2J")
        assert found["at"] == f"tests/worker/talkative.py:{line}"
        text = found["traceback"].splitlines()
        assert text[0] == "Traceback (most recent call last):"
        assert text[1].startswith(f'  File "{file}", line ')
        assert text[1].endswith(", in fail")
        assert f'  File "{file}", line {line}, in refuse' in text
        assert text[-1] == "ConnectionError: the bank hung up\x1b[2J"
        assert found["tries"] == number
    assert [(line["event"], line["level"]) for line in tries] == [
        ("job_retries", "warning"),
        ("job_retries", "warning"),
        ("job_died", "error"),
    ]
    assert [(line.get("max_tries"), line.get("retry_in")) for line in tries] == [
        (3, 0.05),
        (3, 0.05),
        (None, None),
    ]
    assert all(line["retry_at"] > line["timestamp"] for line in tries[:2])
    assert tries[2]["reason"] == "failed"


class Screen:
    """A terminal of so many columns, for what a worker logs."""

    def __init__(self, columns: int) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        os.set_blocking(self._ours, False)
        self.redirect = f"2>{os.ttyname(self._theirs)}"
        self._read = b""

    @property
    def text(self) -> str:
        """What was written so far, with its colours."""
        with suppress(OSError):
            while data := os.read(self._ours, 1 << 16):
                self._read += data
        return self._read.decode().replace("\r\n", "\n")

    @property
    def plain(self) -> str:
        """The same without colours."""
        return re.sub(r"\x1b\[\d+m", "", self.text)

    def close(self) -> None:
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def screen(request: pytest.FixtureRequest) -> Iterator[Screen]:
    screen = Screen(request.param)
    yield screen
    screen.close()


@pytest.mark.parametrize("screen", [60, 120], indirect=True)
async def test_on_a_terminal_the_traceback_of_a_task_is_shown_once_and_then_a_line_per_try(
    workers: Workers, client: App, screen: Screen
) -> None:
    worker = workers(
        app=TALKATIVE, redirect=screen.redirect, FENNELQ_LOG_FORMAT="auto", FENNELQ_CONCURRENCY="1"
    )
    first = await client.send(f"{HERE}fail", "x")
    eventually(lambda: "job_died" in screen.plain, what="the job is dead")
    second = await client.send(f"{HERE}fail", "x")
    eventually(lambda: screen.plain.count("job_died") == 2, what="the second is dead as well")
    worker.term()
    assert worker.returncode() == 0
    shown = screen.plain
    assert len(re.findall(r"\[warning  \] job_retries ", shown)) == 4
    assert len(re.findall(r"\[error    \] job_died ", shown)) == 2
    for job in (first, second):
        every = [line for line in shown.splitlines() if f"job_id={job.id}" in line]
        about = [line for line in every if "new_error" not in line]
        assert len(every) - len(about) == (1 if job is first else 0)
        assert len(about) == 3
        assert all("error=ConnectionError" in line for line in about)
        assert all(r"message='the bank hung up\\x1b[2J'" in line for line in about)
        assert re.search(r"max_tries=3 .* retry_at=(\d\d:\d\d:\d\d) retry_in=0.05 .* tries=1$", about[0])
    (traceback,) = re.findall(r"^Traceback .*?^\S*Error: .*?$", shown, re.MULTILINE | re.DOTALL)
    assert "in fail\n    refuse()\n" in traceback
    assert traceback.endswith(r"ConnectionError: the bank hung up\x1b[2J")
    assert "fennelq/worker" not in shown
    # Only colours are left of what a terminal obeys.
    assert {c for c in screen.plain if not c.isprintable()} == {"\n"}
    assert "\x1b[1m" in screen.text


async def test_the_first_job_that_dies_of_a_cause_is_named_in_a_warning(
    workers: Workers, client: App
) -> None:
    worker = workers(app=TALKATIVE)
    for name in ("x", "y"):
        with pytest.raises(TaskFailed):
            await (await client.send(f"{HERE}fail", name)).get(timeout=30)
    worker.term()
    assert worker.returncode() == 0
    (line,) = [line for line in lines(worker) if line["event"] == "new_error"]
    (group,) = await client.dlq.groups()
    assert (line["level"], line["fingerprint"]) == ("warning", group.fingerprint)
    assert (line["task"], line["error"], line["reason"]) == (f"{HERE}fail", "ConnectionError", "failed")
    assert not {"message", "traceback"} & line.keys()


# Lines of the users' own


def own(worker: Process, job_id: str) -> list[dict[str, Any]]:
    """What the code of a job has logged."""
    return [
        line
        for line in lines(worker)
        if line.get("logger") == talkative.__name__ and line["job_id"] == job_id
    ]


async def test_lines_of_a_task_appear_with_its_job_in_the_same_format(workers: Workers, client: App) -> None:
    worker = workers("--log-level", "info", app=TALKATIVE)
    job = await client.send(f"{HERE}talk", "x")
    await job.get(timeout=30)
    eventually(lambda: "job_succeeded" in events_of(worker, job.id))
    unused = [line for line in lines(worker) if line["event"] == "route_unused"]
    assert [(line["level"], line["pattern"], line["queue"]) for line in unused] == [
        ("warning", "tests.worker.quiet.*", "quiet")
    ]
    found = own(worker, job.id)
    about = {
        "level": "info",
        "logger": talkative.__name__,
        "job_id": job.id,
        "task": f"{HERE}talk",
        "queue": "default",
        "tries": 1,
    }
    for line in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("timestamp"))
    assert found[:2] == [
        {**about, "event": "stdlib logs 7", "order": 7},
        {**about, "event": "structlog logs", "order": 7},
    ]
    assert sorted(line["event"] for line in found[2:]) == ["from a sub-task", "from a thread"]
    assert [line for line in found[2:] if {**line, "event": ""} != {**about, "event": ""}] == []


async def test_lines_of_a_task_in_a_thread_and_their_exceptions_appear_too(
    workers: Workers, client: App
) -> None:
    worker = workers(app=TALKATIVE)
    job = await client.send(f"{HERE}talk_in_thread", "x")
    await job.get(timeout=30)
    eventually(lambda: "job_succeeded" in events_of(worker, job.id))
    found = own(worker, job.id)
    assert [(line["event"], line["level"]) for line in found] == [
        ("stdlib logs 8", "info"),
        ("structlog logs", "info"),
        ("stdlib failed", "error"),
        ("structlog failed", "error"),
    ]
    # A field that is called like a part of the line keeps its value under another name.
    assert (found[0]["order"], found[0]["level_"], found[0]["tries"]) == (8, "mine", 1)
    for line in found[2:]:
        assert line["traceback"].startswith("Traceback (most recent call last):\n")
        assert line["traceback"].endswith("LookupError: not there\n")


@pytest.mark.parametrize(
    ("level", "events"),
    [
        ("debug", ["stdlib logs 7", "stdlib whispers", "structlog logs", "structlog whispers"]),
        ("warning", []),
    ],
)
async def test_the_log_level_is_that_of_the_users_lines_too(
    workers: Workers, client: App, level: str, events: list[str]
) -> None:
    worker = workers("--log-level", level, app=TALKATIVE)
    job = await client.send(f"{HERE}talk", "x")
    assert await job.get(timeout=30) == 1
    worker.term()
    assert worker.returncode() == 0
    found = [line["event"] for line in own(worker, job.id) if not line["event"].startswith("from")]
    assert sorted(found) == events


@pytest.mark.parametrize("how", ["basic", "handler", "stdlib", "structlog"])
async def test_code_that_configures_logging_itself_gets_each_line_once(
    workers: Workers, client: App, how: str
) -> None:
    worker = workers(app=TALKATIVE, TALKATIVE=how)
    job = await client.send(f"{HERE}talk", "x")
    assert await job.get(timeout=30) == 1
    worker.wait_for("job_succeeded")
    worker.term()
    assert worker.returncode() == 0
    text = worker.text
    for event in ("stdlib logs 7", "structlog logs", "from a sub-task", "from a thread"):
        assert len(re.findall(event, text)) == 1, event
    # fennelq's own lines keep their format.
    assert json.loads(next(line for line in text.splitlines() if "job_succeeded" in line))["job_id"] == job.id
    if how != "structlog":
        assert len(re.findall("^mine ", text, re.MULTILINE)) == (0 if how == "basic" else 2)


# No configuration by fennelq


async def test_without_fennelqs_configuration_all_lines_go_through_that_of_the_standard_library(
    workers: Workers, client: App
) -> None:
    worker = workers(app=TALKATIVE, TALKATIVE="stdlib", FENNELQ_LOG_CONFIG="none")
    job = await client.send(f"{HERE}talk", "x")
    assert await job.get(timeout=30) == 1
    died = await client.send(f"{HERE}fail", "x")
    worker.wait_for("job_died")
    worker.term()
    assert worker.returncode() == 0
    text = worker.text
    assert f"mine INFO {talkative.__name__} {job.id} stdlib logs 7\n" in text
    assert f"mine INFO {talkative.__name__} {job.id} from a sub-task\n" in text
    assert re.search(
        rf"^mine INFO fennelq.worker {job.id} job_succeeded job_id={job.id} ", text, re.MULTILINE
    )
    assert re.search(r"^mine INFO fennelq.supervisor  worker_started version=", text, re.MULTILINE)
    tried = rf"^mine WARNING fennelq.worker {died.id} job_retries .*'the bank hung up\\x1b\[2J'.*\nTraceback "
    assert len(re.findall(tried, text, re.MULTILINE)) == 2
    assert '{"' not in text


async def test_without_fennelqs_configuration_all_lines_go_through_that_of_structlog(
    workers: Workers, client: App
) -> None:
    worker = workers("--log-config", "none", app=TALKATIVE, TALKATIVE="structlog")
    job = await client.send(f"{HERE}talk", "x")
    assert await job.get(timeout=30) == 1
    worker.wait_for("job_succeeded")
    worker.term()
    assert worker.returncode() == 0
    text = worker.text
    about = f"job_id='{job.id}' task='{HERE}talk' queue='default' tries=1"
    assert f"level='info' event='structlog logs' order=7 {about}\n" in text
    assert f"level='info' event='job_succeeded' {about} seconds=" in text
    assert "level='info' event='worker_started' version=" in text
    assert '{"' not in text


async def test_without_any_configuration_warnings_are_shown(workers: Workers, client: App) -> None:
    worker = workers("--log-config", "none", app=TALKATIVE)
    died = await client.send(f"{HERE}fail", "x")
    worker.wait_for("job_died")
    worker.term()
    assert worker.returncode() == 0
    shown = [line for line in worker.text.splitlines() if line.startswith("job_")]
    assert [line.partition(" task=")[0] for line in shown] == [
        *[f"job_retries job_id={died.id}"] * 2,
        f"job_died job_id={died.id}",
    ]
