"""Traces of real worker processes: a job that is retried twice, and moves to another executor after `kill -9`."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from fennelq import Status
from fennelq.plugins.opentelemetry import OpenTelemetry
from tests.kit.apps import LocalApp
from tests.kit.processes import executors
from tests.kit.server import Server
from tests.kit.spawn import Spawner
from tests.kit.waiting import eventually
from tests.plugins import traced

LONG = 30.0


def test_all_runs_of_a_job_that_moves_after_kill_9_link_to_the_call_that_sent_it(
    spawn: Spawner, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, holding, gate = tmp_path / "spans", tmp_path / "holding", tmp_path / "gate"
    monkeypatch.setenv(traced.FILE, str(spans))
    environment = {
        "FENNELQ_REDIS_URL": server.url,
        "FENNELQ_HEARTBEAT_INTERVAL": "0.1",
        "FENNELQ_LEASE": "1",
        "FENNELQ_SCHEDULE_INTERVAL": "0.05",
        traced.FILE: str(spans),
    }
    app = LocalApp("shop", redis_url=server.url)
    app.use(OpenTelemetry(tracer_provider=traced.provider))
    sent = app.task(name="shop:troubled", queue="mail", retries=2)(traced.troubled.function)
    result = sent.sync.delay(str(holding), str(gate))
    worker = spawn("fennelq", "worker", "-A", f"{traced.__name__}:app", "-p", "1", environment=environment)
    eventually(holding.exists, within=LONG)
    (executor,) = executors(worker)
    executor.kill()
    gate.touch()
    assert result.get(timeout=LONG) == 3
    worker.term()
    assert worker.returncode(LONG) == 0
    assert result.status() is Status.SUCCESS
    lines = [orjson.loads(line) for line in spans.read_bytes().splitlines()]
    (parent,) = [line["span"] for line in lines if line["name"] == "send mail"]
    runs = [line for line in lines if line["name"] == "process mail"]
    info = result.info()
    assert info is not None
    assert info.headers["traceparent"].split("-")[2] == parent
    # The executor of the third run was killed, so that run has no span: this is the third try in another executor.
    assert [(run["try"], run["error"]) for run in runs] == [
        (1, "ConnectionError"),
        (2, "ConnectionError"),
        (3, None),
    ]
    assert {link for run in runs for link in run["links"]} == {parent}
    assert [len(run["links"]) for run in runs] == [1, 1, 1]
    assert len({run["pid"] for run in runs}) == 2
    assert runs[-1]["delivery"] == 2
    app.blocking.close()
