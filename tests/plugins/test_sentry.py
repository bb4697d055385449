"""The plugin Sentry, with the real SDK and a transport that keeps what would be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from fennelq import App, ConfigurationError, RetryPolicy, Snooze, Status, TaskFailed
from fennelq.plugins.sentry import Sentry
from fennelq.plugins.sentry.reporting import Reporting
from fennelq.testing import Testing
from tests.kit.workers import running

SECRET = "hunter2-hunter2"


class Kept(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []
        self.transactions: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            payload = orjson.loads(item.get_bytes())
            if item.type == "event":
                self.events.append(payload)
            elif item.type == "transaction":
                self.transactions.append(payload)

    def of(self, op: str) -> list[Any]:
        """The transactions of this kind."""
        return [one for one in self.transactions if one["contexts"]["trace"]["op"] == op]


@pytest.fixture
def kept() -> Iterator[Kept]:
    """What was sent to Sentry."""
    kept = Kept()
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:1/1",
        transport=kept,
        traces_sample_rate=1.0,
        default_integrations=False,
        auto_enabling_integrations=False,
    )
    yield kept
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.get_global_scope().set_client(None)


async def test_a_dead_job_is_reported_once_with_its_fingerprint(t: Testing, kept: Kept) -> None:
    t.app.use(Sentry())

    @t.app.task(name="shop:charge", queue="mail", retry=RetryPolicy.fixed(1, delay=60))
    async def charge(password: str) -> None:
        raise ConnectionError(f"refused for {password}")

    result = await charge.delay(SECRET)
    await t.run_until_idle()
    assert kept.events == []
    t.tick(60)
    await t.run_until_idle()
    (event,) = kept.events
    (value,) = event["exception"]["values"]
    assert (value["type"], value["value"]) == ("ConnectionError", "refused for [redacted]")
    assert value["mechanism"] == {"type": "fennelq", "handled": False}
    assert value["stacktrace"]["frames"][-1]["function"] == "charge"
    info = await result.info()
    assert info is not None
    assert info.error is not None
    assert info.status is Status.DEAD
    assert event["fingerprint"] == [info.error.fingerprint]
    assert event["level"] == "error"
    assert event["tags"] == {
        "fennelq.task": "shop:charge",
        "fennelq.queue": "mail",
        "fennelq.job": result.id,
        "fennelq.try": "2",
        "fennelq.reason": "failed",
    }
    assert SECRET not in orjson.dumps([kept.events, kept.transactions]).decode()


async def test_on_request_every_failed_try_is_reported(t: Testing, kept: Kept) -> None:
    t.app.use(Sentry(capture="every"))

    @t.app.task(retry=RetryPolicy.fixed(1, delay=60))
    async def charge() -> None:
        sentry_sdk.add_breadcrumb(message="charging")
        raise ValueError("no")

    await charge.delay()
    await t.run_until_idle()
    t.tick(60)
    await t.run_until_idle()
    assert [(one["level"], one["tags"]["fennelq.try"]) for one in kept.events] == [
        ("warning", "1"),
        ("error", "2"),
    ]
    for event in kept.events:
        crumbs = [one["message"] for one in event["breadcrumbs"]["values"]]
        assert crumbs == ["charging"], "each run has a scope of its own"
    first, second = (one["contexts"]["trace"]["trace_id"] for one in kept.events)
    assert first == second, "both runs belong to the trace that sent the job"


async def test_what_is_no_failure_is_not_reported(app: App, kept: Kept) -> None:
    app.use(Sentry(capture="every"))
    begun = asyncio.Event()

    @app.task
    async def later() -> None:
        raise Snooze(60)

    @app.task
    async def hang() -> None:
        begun.set()
        await asyncio.sleep(60)

    @app.task
    async def work() -> int:
        return 7

    async with running(app):
        await later.delay()
        job = await hang.delay()
        await asyncio.wait_for(begun.wait(), 30)
        assert await job.cancel()
        assert await (await work.delay()).get(timeout=30) == 7
    assert kept.events == []


async def test_a_timeout_is_reported_where_the_task_waited(app: App, kept: Kept) -> None:
    app.use(Sentry())

    @app.task(timeout=0.05, retries=0)
    async def hang() -> None:
        await asyncio.sleep(60)

    async with running(app):
        job = await hang.delay()
        with pytest.raises(TaskFailed):
            await job.get(timeout=30)
    (event,) = kept.events
    value = event["exception"]["values"][-1]
    assert value["value"] == "the task ran longer than its timeout of 0.05 s"
    assert value["type"].endswith("TaskTimeout")
    assert "hang" in {frame["function"] for frame in value["stacktrace"]["frames"]}
    assert event["tags"]["fennelq.reason"] == "timeout"


async def test_a_death_without_an_exception_of_the_run_is_reported(t: Testing, kept: Kept) -> None:
    t.app.use(Sentry())

    @t.app.task(name="shop:odd", retries=0)
    async def odd() -> int:
        return object()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    result = await odd.delay()
    await t.run_until_idle()
    (event,) = kept.events
    assert event["tags"]["fennelq.job"] == result.id
    assert event["tags"]["fennelq.reason"] == "bad_result"
    assert event["exception"]["values"][0]["value"]


async def test_a_run_is_a_transaction_in_the_trace_that_sent_the_job(t: Testing, kept: Kept) -> None:
    t.app.use(Sentry())

    @t.app.task(name="shop:welcome", queue="mail")
    async def welcome(n: int) -> None: ...

    with sentry_sdk.start_transaction(op="http.server", name="request"):
        one = await welcome.delay(1)
        await welcome.map([2, 3])
    await t.run_until_idle()
    (request,) = kept.of("http.server")
    lone, bulk = [span for span in request["spans"] if span["op"] == "queue.publish"]
    assert lone["description"] == "shop:welcome"
    assert lone["data"]["messaging.message.id"] == one.id
    assert lone["data"]["messaging.destination.name"] == "mail"
    assert bulk["data"]["messaging.batch.message_count"] == 2
    runs = kept.of("queue.process")
    assert len(runs) == 3
    (run,) = [run for run in runs if run["contexts"]["trace"]["data"]["messaging.message.id"] == one.id]
    traced = run["contexts"]["trace"]
    assert run["transaction"] == "shop:welcome"
    assert traced["trace_id"] == request["contexts"]["trace"]["trace_id"]
    assert traced["parent_span_id"] == lone["span_id"]
    assert traced["data"]["messaging.destination.name"] == "mail"
    assert traced["data"]["messaging.message.retry.count"] == 0
    assert traced["data"]["messaging.message.body.size"] == len(b"[[1],{}]")
    assert 0 <= traced["data"]["messaging.message.receive.latency"] < 60_000
    assert traced["status"] == "ok"


@pytest.mark.parametrize("text", ["x", "\x1b[31m", "0-0-0", "x" * 7000])
async def test_malformed_headers_are_dropped(t: Testing, kept: Kept, text: str) -> None:
    t.app.use(Sentry())

    @t.app.task
    async def welcome() -> int:
        return 7

    job = await welcome.options(headers={"sentry-trace": text}).delay()
    await t.run_until_idle()
    assert await job.get() == 7
    (run,) = kept.of("queue.process")
    assert "parent_span_id" not in run["contexts"]["trace"] or not run["contexts"]["trace"]["parent_span_id"]


async def test_without_init_the_plugin_does_nothing(t: Testing) -> None:
    t.app.use(Sentry())

    @t.app.task(retries=0)
    async def fail() -> None:
        raise ValueError("no")

    job = await fail.delay()
    await t.run_until_idle()
    assert await job.status() is Status.DEAD
    info = await job.info()
    assert info is not None
    assert info.headers == {}


async def test_the_exceptions_that_wait_are_bounded(kept: Kept) -> None:
    app = App("shop", redis_url="redis://127.0.0.1:1")
    reporting = Reporting(Sentry(), app)
    for number in range(300):
        delivery: Any = type("Delivery", (), {"id": str(number)})()
        failure: Any = type("Failure", (), {"delivery": delivery})()
        reporting.keep(failure)
    assert [*reporting.failures] == [str(number) for number in range(100, 300)]


def test_a_mistake_is_named() -> None:
    wrong: Any = "all"
    with pytest.raises(ConfigurationError, match="'dead' or 'every', not 'all'"):
        Sentry(capture=wrong)
