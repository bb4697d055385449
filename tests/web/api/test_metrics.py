"""Prometheus scrapes the HTTP API as it scrapes the exporter."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fennelq import App
from fennelq.manage import watch
from fennelq.manage.measures import Measures
from fennelq.manage.watch import Watch, look_at
from tests.kit.server import Server
from tests.web.api.kit import Program
from tests.web.kit import Browser, by_name

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_in(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "duration" not in sample.name and "seconds" not in sample.name
    }


async def exported(app: App) -> Samples:
    async with Watch(app) as looking, Measures(app, looking) as measures:
        return samples_in((await measures.page()).text())


async def test_the_metrics_are_those_of_the_exporter(program: Program, app: App) -> None:
    for task, args in (("shop:welcome", [1]), ("shop:welcome", [2]), ("reports:daily", [])):
        assert (await program.post("/jobs", {"task": task, "args": args})).status_code == 201
    for path in ("/metrics", "/api/v1/metrics"):
        answer = await program.http.get(path)
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        found = samples_in(answer.text)
        assert found == await exported(app)
        jobs = ("fennelq_queue_jobs", frozenset({("queue", "mail"), ("state", "waiting")}))
        assert (found[jobs], found["fennelq_up", frozenset()]) == (2, 1)


async def test_scrapes_and_questions_share_one_look(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[App] = []

    def counted(app: App) -> Any:
        looks.append(app)
        return look_at(app)

    monkeypatch.setattr(watch, "look_at", counted)
    monkeypatch.setattr(watch, "SHORTEST", 3600.0)
    monkeypatch.setattr(watch, "LONGEST", 3600.0)
    for _ in range(3):
        assert "fennelq_up 1" in (await program.http.get("/metrics")).text
        assert (await program.get("/queues")).status_code == 200
    assert len(looks) == 1


async def test_the_metrics_need_the_right_to_see(app: App) -> None:
    async with Program(app, auth=by_name) as program:
        statuses = {
            user: (await program.http.get("/metrics", headers={"X-User": user})).status_code
            for user in ("see", "send", "nothing", "wrong")
        }
        assert statuses == {"see": 200, "send": 403, "nothing": 403, "wrong": 401}
        assert (await program.http.get("/metrics")).status_code == 401


@pytest.mark.usefixtures("impatient")
async def test_while_redis_is_away_the_metrics_say_so(program: Program, server: Server) -> None:
    assert "fennelq_up 1" in (await program.http.get("/metrics")).text
    server.pause()
    try:
        while "fennelq_up 1" in (await program.http.get("/metrics")).text:
            pass  # the latest look is shown until the next one is overdue
        answer = await program.http.get("/metrics")
    finally:
        server.resume()
    assert answer.status_code == 200, "Prometheus reads `fennelq_up 0` from answers with 200 only"
    assert "fennelq_up 0" in answer.text
    assert "fennelq_queue_jobs" not in answer.text


async def test_the_dashboard_serves_the_metrics_too(app: App) -> None:
    async with Browser(app) as pages:
        answer = await pages.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert "fennelq_up 1" in answer.text
