"""Workers of two versions of an app side by side, as in a rolling deploy; and workers that serve too little."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fennelq import App, AsyncResult, Status, gather
from tests.kit.server import Server
from tests.kit.spawn import Process
from tests.kit.waiting import aeventually
from tests.worker.conftest import Workers

OLD = """
from fennelq import App

app = App("shop")

@app.task(name="deploy:welcome")
async def welcome(user: int) -> str:
    return f"hello {user}"
"""
NEW = """
from fennelq import App

app = App("shop")

@app.task(name="deploy:welcome")
async def welcome(user: int, template: str = "hello") -> str:
    return f"{template} {user}"

@app.task(name="deploy:goodbye")
async def goodbye(user: int) -> str:
    return f"bye {user}"
"""

Deploy = Callable[..., Process]


@pytest.fixture
def deploy(workers: Workers, tmp_path: Path) -> Deploy:
    """`deploy("old", OLD)`: a worker with this code."""

    def start(module: str, code: str, *flags: str) -> Process:
        (tmp_path / f"{module}.py").write_text(code)
        return workers("--app-dir", str(tmp_path), *flags, app=f"{module}:app")

    return start


@pytest.fixture
async def sender(redis_url: str) -> Any:
    """The app of a sender with the new code."""
    spaces: dict[str, Any] = {}
    exec(NEW.replace('App("shop")', f'App("shop", redis_url={redis_url!r})'), spaces)
    async with spaces["app"] as app:
        yield app


def warnings(worker: Process, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in worker.text.splitlines()]
    return [line for line in lines if line["event"] == event]


async def test_two_hundred_jobs_with_a_new_argument_are_all_done_by_the_new_worker(
    deploy: Deploy, sender: App, server: Server
) -> None:
    old = deploy("old", OLD)
    welcome, goodbye = sender.tasks["deploy:welcome"], sender.tasks["deploy:goodbye"]
    results: list[AsyncResult[str]] = await sender.enqueue(
        [*(welcome.job(user, template="hi") for user in range(200)), goodbye.job(7)]
    )
    old.wait_for('"argument_unknown"')
    old.wait_for('"task_unknown"')
    deploy("new", NEW)
    await aeventually(lambda: _some_done(results), within=30)
    old.term()
    assert old.returncode() == 0
    assert await gather(*results, timeout=60) == [*(f"hi {user}" for user in range(200)), "bye 7"]
    infos = [await result.info() for result in results]
    assert Counter(info.status for info in infos if info) == {Status.SUCCESS: 201}
    assert {info.tries for info in infos if info} == {1}
    assert await sender.dlq.count() == 0
    (argument,), (task,) = warnings(old, "argument_unknown"), warnings(old, "task_unknown")
    assert argument["level"] == task["level"] == "warning"
    assert argument["why"] == (
        "deploy:welcome, parameter 'template': the task has no such parameter; it takes (user: int) -> str"
    )
    assert argument["likely"] == (
        "the sender's code is newer than this worker's: restart the worker with the new code"
    )
    assert task["why"] == "unknown task 'deploy:goodbye'; known: deploy:welcome"


async def test_the_command_line_names_the_reason_while_the_worker_runs(deploy: Deploy, sender: App) -> None:
    from fennelq.manage.queues.queues import Queues

    worker = deploy("old", OLD, "-q", "default")
    result = await sender.tasks["deploy:goodbye"].delay(1)
    await sender.tasks["deploy:goodbye"].options(queue="mail").delay(1)
    worker.wait_for('"task_unknown"')
    queues = Queues(sender)

    async def named() -> bool:
        info = await queues.info("default")
        return bool(info.waiting_because)

    await aeventually(named)
    default, mail = await queues.list()
    assert default.waiting_because == [
        "1 of 1 executor cannot run some of them: unknown task 'deploy:goodbye'; known: deploy:welcome"
    ]
    assert mail.waiting_because == [
        "no worker serves queue 'mail' (the running ones serve: default); "
        "start one with `fennelq worker -q mail`, or without -q for every queue"
    ]
    worker.term()
    assert worker.returncode() == 0
    for info in await queues.list():
        assert info.waiting_because == ["no worker runs; start one with `fennelq worker`"]
    assert await result.cancel()


async def _some_done(results: list[AsyncResult[str]]) -> bool:
    return any([await result.status() is Status.SUCCESS for result in results[:20]])
