"""A real Prometheus scrapes a worker and an exporter under load; the board's queries, the alerts and the recipes."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fennelq import App, Limit, Reject, RetryPolicy, metrics
from fennelq.model.metrics import OF_REDIS, OF_SENDERS, OF_WORKERS
from tests.kit.apps import LocalApp
from tests.kit.metrics import page_of, scraped, total
from tests.kit.ports import HOST, Port
from tests.kit.prometheus import MISSING, Prometheus, is_installed
from tests.kit.server import Server
from tests.kit.spawn import PROJECT, Process, Spawner
from tests.kit.waiting import eventually

OPERATE = PROJECT / "docs" / "operate"
BOARD = json.loads((OPERATE / "fennelq-board.json").read_text("utf-8"))
RULES = OPERATE / "fennelq-alerts.yml"
NAMES = {metric.name for metric in (*OF_WORKERS, *OF_REDIS)}

needs_prometheus = pytest.mark.skipif(not is_installed(), reason=MISSING)


def app_of(**settings: Any) -> App:
    """The app whose jobs are scraped. Its worker runs in another process."""
    app = LocalApp("shop", **settings)

    @app.task(name="shop:welcome", queue="mail")
    async def welcome(n: int) -> int:
        await asyncio.sleep(n % 10 / 500)
        if n % 10 == 0:
            await note.delay(n)
        if n % 50 == 1:
            raise Reject("no")
        return n

    @app.task(name="shop:again", queue="slow", retry=RetryPolicy.fixed(3, delay=1))
    async def again() -> None:
        raise ValueError("no")

    @app.task(name="shop:note", queue="slow", concurrency=Limit(2))
    async def note(n: int) -> None: ...

    return app


app = app_of()
"""For the worker and the exporter: their Redis comes from their environment."""


class Scene:
    """A worker and an exporter at work."""

    def __init__(self, spawn: Spawner, server: Server) -> None:
        self._spawn, self._url = spawn, server.url
        self.ports = {"fennelq-worker": Port(), "fennelq-exporter": Port()}
        self.numbers = {name: port.number for name, port in self.ports.items()}
        worker, exporter = self.numbers.values()
        self._start("worker", "-p", "2", "-c", "8", "--health-port", f"{HOST}:{worker}")
        self._start("exporter", "--port", f"{HOST}:{exporter}")

    def _start(self, *words: str) -> Process:
        environment = {
            "FENNELQ_REDIS_URL": self._url,
            "FENNELQ_LOG_LEVEL": "critical",
            "FENNELQ_SCHEDULE_INTERVAL": "0.1",
        }
        return self._spawn("fennelq", words[0], "-A", f"{__name__}:app", *words[1:], environment=environment)

    def wait(self) -> None:
        """Until the worker works."""
        worker = self.numbers["fennelq-worker"]
        eventually(
            lambda: total(scraped(worker), "fennelq_executors", state="ready") == 2,
            tolerate=(OSError,),
            within=20,
        )
        eventually(
            lambda: scraped(self.numbers["fennelq-exporter"])["fennelq_up"], tolerate=(OSError,), within=20
        )

    async def load(self, seconds: float) -> int:
        """Send jobs for so long; returns how many."""
        shop = app_of(redis_url=self._url)
        sent, ends = 0, time.monotonic() + seconds
        async with shop:
            welcome, again = shop.tasks["shop:welcome"], shop.tasks["shop:again"]
            await shop.schedules.add(welcome.job(7), name="often", every=0.5)
            await shop.schedules.add(shop.tasks["shop:again"].job(), name="later", every=3600)
            while time.monotonic() < ends:
                await shop.enqueue([welcome.job(n) for n in range(100)])
                await again.delay()
                sent += 101
                await asyncio.sleep(0.3)
            await shop.schedules.pause("often")
        return sent

    async def tidy_up(self) -> None:
        """Remove the schedules."""
        async with app_of(redis_url=self._url) as shop:
            for name in ("often", "later"):
                await shop.schedules.remove(name)


def queries() -> Iterator[tuple[str, str]]:
    """Each panel's title and query, for all queues and a window of ten seconds."""
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "10s").replace("$queue", ".*")
            yield panel["title"], query


@needs_prometheus
@pytest.mark.audit(unfinished=True)
@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_prometheus_answers_every_query_of_the_board_under_load(
    seconds: float, spawn: Spawner, server: Server, tmp_path: Path
) -> None:
    scene = Scene(spawn, server)
    scene.wait()
    with Prometheus(tmp_path / "prometheus", scene.numbers, RULES) as prometheus:
        sent = asyncio.run(scene.load(seconds))
        eventually(
            lambda: total(scraped(scene.numbers["fennelq-worker"]), "fennelq_slots_busy") == 0, within=30
        )

        def unanswered() -> list[tuple[str, str]]:
            return [(title, query) for title, query in queries() if not prometheus.query(query)]

        # A rate needs two scrapes, and on a busy machine one of them may come too late.
        eventually(lambda: unanswered() == [], every=0.5)
        eventually(lambda: prometheus.targets() == dict.fromkeys(scene.numbers, "up"), every=0.1)
        # Each of the sent jobs has run once, besides those of the schedule, of other jobs and of retries.
        runs = 'sum(fennelq_runs_total{task="shop:welcome"})'
        waits = 'sum(fennelq_wait_duration_seconds_count{task="shop:welcome"})'
        least = sent * 100 / 101
        eventually(lambda: prometheus.value(runs) >= least)
        eventually(lambda: prometheus.value(runs) == prometheus.value(waits))
        ended = 'sum(fennelq_queue_ended_total{queue="mail"})'
        eventually(lambda: prometheus.value(ended) == prometheus.value(runs))
        eventually(lambda: {rule["health"] for rule in prometheus.rules()} == {"ok"}, every=0.1)
        for number in scene.numbers.values():
            check_metrics(page_of(number))
    asyncio.run(scene.tidy_up())
    for port in scene.ports.values():
        port.release()


def check_metrics(page: str) -> None:
    """`promtool check metrics` has nothing to say."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_prometheus
def test_the_page_of_a_sender_is_accepted_too(redis_url: str) -> None:
    shop = app_of(redis_url=redis_url, metrics=True)
    shop.counting.note_sent(shop.describe('sh"op:a\\b'), 1)
    page = metrics.expose().body.decode()
    check_metrics(page)
    assert {metric.name for metric in OF_SENDERS} <= set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))


@needs_prometheus
def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", "fennelq-alerts-test.yml"],
        cwd=OPERATE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_every_alert_is_tested() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text("utf-8"))
    tests = (OPERATE / "fennelq-alerts-test.yml").read_text("utf-8")
    fires = re.findall(r"alertname: (\w+)\n +exp_alerts:[^\[\n]*\n", tests)
    assert sorted({*fires}) == sorted(alerts)
    assert len(alerts) == 13


@needs_prometheus
def test_the_example_configuration_is_valid() -> None:
    done = subprocess.run(
        ["promtool", "check", "config", "prometheus.yml"],
        cwd=OPERATE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# Without Prometheus


@pytest.mark.parametrize("path", sorted(OPERATE.iterdir()), ids=lambda path: path.name)
def test_boards_alerts_and_recipes_use_metrics_that_exist(path: Path) -> None:
    known = NAMES | {f"{name}_{part}" for name in NAMES for part in ("bucket", "sum", "count")}
    used = set(re.findall(r"\bfennelq_\w+", path.read_text("utf-8"))) - {"fennelq_backlog"}
    assert used <= known
    assert used or path.suffix == ".yml"


def test_the_board_shows_every_metric() -> None:
    text = (OPERATE / "fennelq-board.json").read_text("utf-8")
    shown = {name for name in NAMES if re.search(rf"\b{name}(_bucket|_sum|_count)?\b", text)}
    assert shown == NAMES


def test_the_board_has_the_shape_that_grafana_reads() -> None:
    assert (BOARD["title"], BOARD["uid"], BOARD["schemaVersion"]) == ("fennelq", "fennelq", 38)
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {variable["name"] for variable in BOARD["templating"]["list"]} == {"datasource", "queue"}
    covered: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in ("timeseries", "stat")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not covered & cells
        covered |= cells
        for target in panel["targets"]:
            assert target["expr"]
            assert target["legendFormat"]
