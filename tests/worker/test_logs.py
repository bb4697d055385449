"""Logs: every line about a job names it, and nothing that is nobody's business is in any of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from fennelq import App, TaskFailed
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.waiting import aeventually, eventually
from tests.worker import shop
from tests.worker.conftest import Workers
from tests.worker.shop import task_of

ABOUT_JOBS = ("job_", "lease_lost")


def lines(worker: Process) -> list[dict[str, Any]]:
    """Its log so far; each line is JSON."""
    return [json.loads(line) for line in worker.text.splitlines()]


def ends(worker: Process) -> Iterator[dict[str, Any]]:
    return (line for line in lines(worker) if line["event"].startswith(ABOUT_JOBS))


async def test_every_line_about_a_job_names_job_task_queue_and_try(workers: Workers, app: App) -> None:
    worker = workers()
    results = [
        await task_of(app, shop.double).delay(1),
        await task_of(app, shop.whisper).delay("a", "b", fail=True),
        await task_of(app, shop.whisper).options(retries=1, queue="mail").delay("a", "b", fail=True),
        await app.send("shop:nobody"),
    ]
    events = ["job_succeeded", "job_died", "job_retries", "task_unknown"]
    eventually(lambda: {line["event"] for line in lines(worker)} >= set(events), within=15)
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


async def test_arguments_results_and_errors_never_appear_in_any_line(workers: Workers, app: App) -> None:
    worker = workers("--log-level", "debug")
    whisper = task_of(app, shop.whisper)
    secretive = whisper.options(headers={"token": "s3cret-header"}, key="s3cret-key")
    assert (
        await (await secretive.delay("s3cret-argument", "s3cret-result")).get(timeout=15) == "s3cret-result"
    )
    with pytest.raises(TaskFailed, match="s3cret"):
        await (await whisper.delay("s3cret-argument", "s3cret-result", fail=True)).get(timeout=5)
    too_long = await app.client.send(whisper.job("x", "y")._replace(args=b'[["s3cret-argument",5],{}]'))
    with pytest.raises(TaskFailed):
        await too_long.get(timeout=5)
    eventually(lambda: sum(1 for _ in ends(worker)) == 3)
    worker.term()
    assert worker.returncode() == 0
    assert "s3cret" not in worker.text


async def test_the_first_line_says_which_app_redis_queues_and_how_many(
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


async def test_a_password_is_never_shown(workers: Workers, spawn: Spawner) -> None:
    password = "open sesame: tonight?"
    with Server(password=password) as guarded:
        worker = workers(FENNELQ_REDIS_URL=guarded.url)
        first = json.loads(worker.wait_for("worker_started"))
        assert first["redis"] == f"redis://:***@127.0.0.1:{guarded.port}/0"
        async with shop.app_of(redis_url=guarded.url) as app:
            assert await (await task_of(app, shop.double).delay(4)).get(timeout=15) == 8
        guarded.kill()
        worker.wait_for("trouble")
        guarded.start()
        worker.term()
        worker.returncode()
        assert "sesame" not in worker.text
        assert quote(password) not in worker.text


async def test_a_wrong_password_ends_the_worker_or_is_told_without_showing_it(workers: Workers) -> None:
    with Server(password="open sesame") as guarded:
        worker = workers(FENNELQ_REDIS_URL=guarded.url.replace("open%20sesame", "shut%20sesame"))
        eventually(lambda: "WRONGPASS" in worker.text, within=15)
        assert "sesame" not in worker.text


async def test_below_warning_jobs_that_succeed_are_not_worth_a_line(workers: Workers, app: App) -> None:
    worker = workers("--log-level", "warning")
    assert await (await task_of(app, shop.double).delay(1)).get(timeout=15) == 2
    with pytest.raises(TaskFailed):
        await (await task_of(app, shop.whisper).delay("a", "b", fail=True)).get(timeout=15)
    worker.wait_for("job_died")
    worker.term()
    assert worker.returncode() == 0
    assert {line["event"] for line in lines(worker)} == {"job_died"}


async def test_on_a_console_no_name_out_of_redis_drives_the_terminal(workers: Workers, app: App) -> None:
    hostile = "shop:\x1b[2J\x1b]0;owned\x07\u202egnp"
    job = task_of(app, shop.double).job(1)._replace(task=hostile)
    worker = workers("--log-format", "console")
    result = await app.client.send(job)
    line = worker.wait_for("task_unknown", within=15)
    assert "\\x1b[2J\\x1b]0;owned\\x07\\u202egnp" in line
    assert {c for c in line if not c.isprintable()} == set()
    # The line is written before Redis has put the job aside.
    await aeventually(result.cancel)
