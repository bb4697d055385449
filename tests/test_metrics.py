"""`fennelq.metrics`: the metrics of a process that sends jobs, or has an executor in it."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fennelq import (
    App,
    BrokerUnavailable,
    ConfigurationError,
    DuplicateJob,
    QueueFull,
    QueuePaused,
    counting,
    metrics,
)
from fennelq.broker.verbs.runs import Settled
from fennelq.counting import Counting
from fennelq.model.outcome import succeeded
from fennelq.worker.bus import RunsEnded
from fennelq.worker.tally import Tally
from tests.kit.apps import LocalApp
from tests.kit.metrics import Samples, samples_of, total
from tests.kit.server import Server
from tests.kit.workers import running


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apps of earlier tests may live on: they are not this test's."""
    earlier, every = counting.every(), counting.every
    monkeypatch.setattr(counting, "every", lambda: [one for one in every() if one not in earlier])


@pytest.fixture
def app(redis_url: str) -> App:
    return shop_of(redis_url)


def shop_of(url: str, **settings: Any) -> App:
    settings.setdefault("metrics", True)
    app = LocalApp("shop", redis_url=url, **settings)

    @app.task(name="shop:note", queue="mail")
    async def note(n: int = 0) -> int:
        return n

    return app


def exposed() -> Samples:
    body, content_type = metrics.expose()
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    return samples_of(body.decode())


def sent(samples: Samples, **labels: str) -> dict[str, float]:
    outcomes = ("created", "duplicate", "refused", "unavailable")
    found = {one: total(samples, "fennelq_sent_total", outcome=one, **labels) for one in outcomes}
    return {outcome: number for outcome, number in found.items() if number}


@pytest.mark.audit(unfinished=True)
async def test_jobs_that_are_sent_are_counted_by_outcome(app: App) -> None:
    note = app.tasks["shop:note"]
    async with app:
        await note.delay(1)
        await note.options(key="a").delay(1)
        await note.options(key="a").delay(1)
        await app.enqueue([note.job(n) for n in range(5)])
        await note.options(job_id="x").delay(1)
        with pytest.raises(DuplicateJob):
            await note.options(job_id="x").delay(2)
        await app.queues.pause("mail", only="enqueue")
        with pytest.raises(QueuePaused):
            await note.delay(1)
        await app.queues.resume("mail")
    assert sent(exposed(), queue="mail", task="shop:note") == {"created": 8, "duplicate": 1, "refused": 2}


@pytest.mark.audit(unfinished=True)
async def test_a_queue_that_is_full_has_refused_the_call(app: App) -> None:
    app.queue("mail", max_waiting=1, when_full="raise")
    note = app.tasks["shop:note"]
    async with app:
        await note.delay(1)
        with pytest.raises(QueueFull):
            await note.delay(2)
    assert sent(exposed()) == {"created": 1, "refused": 1}


async def test_without_redis_calls_are_unavailable() -> None:
    app = shop_of("redis://127.0.0.1:1/0", enqueue_timeout=0.05)
    note = app.tasks["shop:note"]
    async with app:
        with pytest.raises(BrokerUnavailable):
            await note.delay(1)
        with pytest.raises(BrokerUnavailable):
            await app.enqueue([note.job(1), note.job(2)])
    with pytest.raises(BrokerUnavailable):
        await asyncio.to_thread(note.sync.delay, 3)
    assert sent(exposed()) == {"unavailable": 4}


@pytest.mark.audit(unfinished=True)
def test_calls_without_an_event_loop_are_counted_from_any_thread(app: App) -> None:
    def work() -> None:
        for _ in range(20):
            app.tasks["shop:note"].sync.delay(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sent(exposed()) == {"created": 80}
    app.blocking.close()


def test_no_count_is_lost_between_threads() -> None:
    found = Counting("task")
    job: Any = App("shop").describe("shop:note")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work() -> None:
        for _ in range(2000):
            found.note_sent(job, 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert found.sent() == {("default", "shop:note"): [8000, 0, 0, 0]}


def test_another_thread_may_show_runs_while_an_executor_counts_them() -> None:
    """A page that fails, or a counter that falls, would be a restart for Prometheus."""
    found = Counting("task")
    tally = Tally({f"shop:task_{n}" for n in range(400)}, found.runs)
    found.attach(tally)
    shown, over = list[float](), threading.Event()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def count() -> None:
        for turn in range(30):
            for n in range(400):
                run: Any = SimpleNamespace(task=f"shop:task_{n}", queue=f"q{turn % 7}")
                tally.ended(RunsEnded(run.queue, [Settled(run, succeeded(b"1", 1000), 0.01)]))
            tally.take()
        over.set()

    counting = threading.Thread(target=count)
    try:
        counting.start()
        while not over.is_set():
            shown.append(sum(row[0] for row in found.ran().values()))
    finally:
        counting.join()
        sys.setswitchinterval(before)
    assert shown == sorted(shown)
    assert sum(row[0] for row in found.ran().values()) == 12_000


def test_a_forked_process_shows_no_runs_of_its_parent_although_a_thread_was_reading_them() -> None:
    found = Counting("task")
    tally = Tally({"shop:note"}, found.runs)
    found.attach(tally)
    run: Any = SimpleNamespace(task="shop:note", queue="mail")
    tally.ended(RunsEnded("mail", [Settled(run, succeeded(b"1", 1000), 0.01)]))
    reading, writing = os.pipe()
    with found.runs.lock:
        if (pid := os.fork()) == 0:
            try:
                os.write(writing, b"none" if found.ran() == {} else b"some")
            finally:
                os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as page:
        ready, _, _ = select.select([page], [], [], 20)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert ready
        assert page.read() == "none"
    assert found.ran() != {}


def test_names_from_requests_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST_SENDING", 10)
    found = Counting("task")
    for n in range(2100):
        job: Any = SimpleNamespace(queue=f"q{n}", task=f"shop:task_{n}")
        found.note_sent(job, 1)
    rows = found.sent()
    assert sum(row[0] for row in rows.values()) == 2100
    assert len({task for _, task in rows}) == 501
    assert len(rows) <= 2001


def test_a_call_that_was_cancelled_is_not_counted() -> None:
    found = Counting("task")
    found.note_sent(App("shop").describe("shop:note"), asyncio.CancelledError())
    assert found.sent() == {}


def test_a_forked_process_counts_from_zero(app: App) -> None:
    app.counting.note_sent(app.describe("shop:note"), 1)
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writing, metrics.expose().body)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    with os.fdopen(reading) as page:
        assert sent(samples_of(page.read())) == {}
    assert sent(exposed()) == {"created": 1}


@pytest.mark.audit(unfinished=True)
def test_what_is_off_counts_nothing_and_expose_says_how_to_turn_it_on(redis_url: str) -> None:
    app = shop_of(redis_url, metrics=False)
    app.tasks["shop:note"].sync.delay(1)
    assert not app.counting.on
    with pytest.raises(
        ConfigurationError,
        match=r"import the module of your app first, and create the app with App\(…, metrics=True\), "
        "or set FENNELQ_METRICS=1",
    ):
        metrics.expose()
    with pytest.raises(ConfigurationError, match="metrics=True"):
        metrics.Collector()
    app.blocking.close()


async def test_runs_of_an_executor_in_this_process_are_exposed_as_well(app: App, server: Server) -> None:
    note = app.tasks["shop:note"]
    async with app:
        async with running(app):
            for result in [await note.delay(n) for n in range(3)]:
                await result.get(timeout=10)
            during = exposed()
        after = exposed()
    for samples in (during, after):
        assert total(samples, "fennelq_runs_total", task="shop:note", outcome="success") == 3
        assert total(samples, "fennelq_run_duration_seconds_count", queue="mail") == 3
    assert sent(after) == {"created": 3}


def test_the_collector_gives_the_same_to_prometheus_client(app: App) -> None:
    registry = CollectorRegistry()
    registry.register(metrics.Collector())
    app.counting.note_sent(app.describe("shop:note"), 1)
    app.counting.note_sent(app.describe("shop:note"), 2)
    found = samples_of(generate_latest(registry).decode())
    assert sent(found, queue="mail", task="shop:note") == {"created": 1, "duplicate": 1}


def test_without_prometheus_client_the_collector_says_what_to_install(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.metrics_core", None)
    with pytest.raises(ConfigurationError, match=r"install fennelq\[prometheus\]"):
        metrics.Collector()
    assert b"fennelq_build_info" in metrics.expose().body


def test_by_queue_there_is_no_task_in_the_labels(redis_url: str) -> None:
    app = shop_of(redis_url, metrics_by="queue")
    app.counting.note_sent(app.describe("shop:note"), 1)
    app.counting.note_sent(app.describe("shop:other", queue="mail"), 1)
    assert b'fennelq_sent_total{queue="mail",outcome="created"} 2\n' in metrics.expose().body
