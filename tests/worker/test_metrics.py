"""Metrics of workers: what executors count, and the page of their supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from itertools import pairwise

import pytest

from fennelq import App
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import queue_keys
from fennelq.broker.trouble import LinkDown, ReplyError
from fennelq.broker.verbs.runs import Settled
from fennelq.model.totals import Message, from_line
from fennelq.worker.bus import JobHandedBack, JobLost, JobsTaken, RunsDoubled, RunsEnded
from fennelq.worker.duties.meter import Meter
from fennelq.worker.duties.metrics import Metrics
from fennelq.worker.processes.child import Child
from fennelq.worker.processes.config import CANNOT_RUN, DRAINED, LIFESPAN_FAILED, RECYCLED, ExecutorConfig
from fennelq.worker.processes.metrics import WorkerMetrics, cause_of
from tests.kit.apps import LocalApp
from tests.kit.ledger import Ledger
from tests.kit.metrics import Samples, fallen, samples_of, scraped, total
from tests.kit.ports import Port
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.worker import shop
from tests.worker.conftest import Workers
from tests.worker.shop import task_of
from tests.worker.states import NOWHERE, state_of
from tests.worker.test_tally import DONE, NOW, delivery

TASK = "shop:welcome"


# An executor


class Sending:
    """The duty of an executor that counts, and what its supervisor receives."""

    def __init__(self, by: str = "task") -> None:
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        app = LocalApp("shop", redis_url=NOWHERE)
        app.task(name=TASK)(len)
        app.task(name="shop:fast", idempotent=True, speculate=0.5)(len)
        config = ExecutorConfig(name="anna", metrics=by, totals=self.writing, concurrency=4)
        self.state = state_of(Broker(address_of(NOWHERE)), queue_keys("shop", "mail"), app=app, config=config)
        self.meter, self.metrics = Meter(self.state), Metrics(self.state)
        self.received: list[Message] = []

    def run(self, number: int = 1) -> None:
        """So many jobs are taken, and succeed after 0.25 s."""
        taken = [delivery(TASK, due_ms=NOW - 30)] * number
        self.state.bus.publish(JobsTaken("mail", taken, NOW))
        self.state.bus.publish(RunsEnded("mail", [Settled(delivery(TASK), DONE, 0.25)] * number))

    async def tick(self) -> Message:
        """The messages of one second, together."""
        assert await self.metrics.tick() == 1.0
        return self.read()

    def fill(self) -> None:
        """The supervisor does not read, and the pipe is full."""
        os.set_blocking(self.writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(self.writing, b"\n" * 4096)

    def read(self) -> Message:
        lines: list[bytes] = []
        with suppress(BlockingIOError):
            while True:
                lines += filter(None, os.read(self._reading, 1 << 20).splitlines())
        messages = [*map(from_line, lines)]
        runs = {pair: row for message in messages for pair, row in message.runs.items()}
        counters = {name: value for message in messages for name, value in message.counters.items()}
        gauges = {name: value for message in messages for name, value in message.gauges.items()}
        return Message(runs, {}, counters, gauges)

    def close(self) -> None:
        os.close(self._reading)
        os.close(self.writing)


@pytest.fixture
async def sending() -> AsyncIterator[Sending]:
    sending = Sending()
    yield sending
    sending.close()


def shown(message: Message) -> Samples:
    """What the page of a supervisor shows of a single executor."""
    child = Child(ExecutorConfig(), silence=60, quarantine=lambda: None)
    child.totals.runs.update(message.runs)
    child.totals.sent.update(message.sent)
    child.totals.counters.update(message.counters)
    return samples_of(WorkerMetrics("task").page([child]).text())


async def test_it_sends_totals_of_what_has_changed(sending: Sending) -> None:
    sending.run(3)
    first = shown(await sending.tick())
    labels = '{queue="mail",task="shop:welcome"}'
    assert total(first, "fennelq_runs_total", outcome="success", task=TASK) == 3
    assert first[f"fennelq_run_duration_seconds_sum{labels}"] == 0.75
    assert first['fennelq_run_duration_seconds_bucket{queue="mail",task="shop:welcome",le="0.1"}'] == 0
    assert first['fennelq_run_duration_seconds_bucket{queue="mail",task="shop:welcome",le="0.25"}'] == 3
    assert first[f"fennelq_wait_duration_seconds_sum{labels}"] == pytest.approx(0.09)
    assert first[f"fennelq_wait_duration_seconds_count{labels}"] == 3
    assert (await sending.tick()).runs == {}
    with pytest.raises(ConnectionRefusedError):
        await sending.meter.tick()  # takes the counts
    sending.run(2)
    assert total(shown(await sending.tick()), "fennelq_runs_total") == 5


async def test_runs_without_an_outcome_and_second_copies_are_counted(sending: Sending) -> None:
    bus = sending.state.bus
    bus.publish(JobLost(delivery(TASK)))
    bus.publish(JobLost(delivery("shop:fast")))
    bus.publish(JobHandedBack(delivery(TASK)))
    bus.publish(RunsDoubled(3, 2))
    samples = shown(await sending.tick())
    assert total(samples, "fennelq_runs_total", task=TASK, outcome="lost") == 1
    assert total(samples, "fennelq_runs_total", task=TASK, outcome="released") == 1
    assert total(samples, "fennelq_runs_total", task="shop:fast", outcome="lost") == 1
    assert samples["fennelq_leases_lost_total"] == 1
    copies = {
        outcome: total(samples, "fennelq_speculations_total", outcome=outcome)
        for outcome in ("made", "refused", "outrun")
    }
    assert copies == {"made": 3, "refused": 2, "outrun": 1}


async def test_errors_of_redis_are_counted_by_kind(sending: Sending) -> None:
    outage = sending.state.outage
    for error in (
        LinkDown("gone"),
        LinkDown("gone"),
        ReplyError("OOM full"),
        ReplyError("WRONGTYPE x"),
        KeyError(),
    ):
        outage.warn("reading", error)
    samples = shown(await sending.tick())
    assert {
        kind: total(samples, "fennelq_redis_errors_total", kind=kind)
        for kind in ("connection", "capacity", "bug", "fatal")
    } == {"connection": 2, "capacity": 1, "bug": 1, "fatal": 0}


async def test_its_gauges_are_of_this_moment(sending: Sending) -> None:
    sending.state.slots.take()
    sending.state.vitals.note_lag(0.25)
    gauges = (await sending.tick()).gauges
    assert {name: gauges[name] for name in ("slots", "slots_busy", "unsettled", "loop_lag")} == {
        "slots": 4,
        "slots_busy": 1,
        "unsettled": 0,
        "loop_lag": 0.25,
    }
    assert gauges["resident_memory"] > 1 << 20
    assert (await sending.tick()).gauges["loop_lag"] == 0


async def test_a_tick_that_is_cancelled_loses_nothing(sending: Sending) -> None:
    sending.fill()
    sending.run(3)
    ticking = asyncio.create_task(sending.metrics.tick())
    for _ in range(5):
        await asyncio.sleep(0)
    ticking.cancel()
    await asyncio.wait([ticking])
    assert sending.read().runs == {}
    await sending.metrics.end()
    assert total(shown(sending.read()), "fennelq_runs_total") == 3


async def test_a_supervisor_that_does_not_read_delays_the_end_for_a_moment_only(
    sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.worker.duties.metrics.LAST_MESSAGE", 0.05)
    sending.fill()
    await asyncio.wait_for(sending.metrics.end(), 20)


async def test_off_it_subscribes_to_nothing_and_keeps_no_sums() -> None:
    app = LocalApp("shop", redis_url=NOWHERE)
    state = state_of(Broker(address_of(NOWHERE)), app=app)
    assert await Metrics(state).tick() > 1000
    assert state.bus.subscribers(JobLost) == []
    assert state.bus.subscribers(RunsDoubled) == []
    assert not app.counting.on


# A supervisor


def child_with(successes: int = 0, **gauges: float) -> Child:
    child = Child(ExecutorConfig(), silence=60, quarantine=lambda: None)
    sending = Sending()
    if successes:
        sending.run(successes)
        child.totals.runs.update(dict(sending.state.tally.counting()))
    child.totals.counters["leases_lost"] = successes
    child.totals.gauges = gauges  # the messages of this child
    sending.close()
    return child


def test_living_and_ended_executors_are_added() -> None:
    worker, first, second = WorkerMetrics("task"), child_with(3), child_with(4)
    before = samples_of(worker.page([first, second]).text())
    worker.add_ended(first, 0)
    after = samples_of(worker.page([second]).text())
    assert fallen(before, after) == {}
    assert total(after, "fennelq_runs_total", outcome="success") == 7
    assert after["fennelq_leases_lost_total"] == 7
    assert fallen(after, samples_of(worker.page([second, child_with(1)]).text())) == {}


def test_the_gauges_are_those_of_the_living() -> None:
    worker = WorkerMetrics("task")
    living = [
        child_with(slots=4, slots_busy=1, unsettled=2, loop_lag=0.5, resident_memory=1000),
        child_with(slots=4, slots_busy=3, unsettled=0, loop_lag=0.1, resident_memory=2000),
    ]
    worker.add_ended(child_with(slots=100), 0)
    samples = samples_of(worker.page(living).text())
    assert (samples["fennelq_slots"], samples["fennelq_slots_busy"], samples["fennelq_unsettled"]) == (
        8,
        4,
        2,
    )
    assert samples["fennelq_loop_lag_seconds"] == 0.5
    assert samples["fennelq_resident_memory_bytes"] > 3000
    assert total(samples, "fennelq_executors", state="starting") == 2


def test_a_loop_that_sends_nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: now[0])
    child = child_with(loop_lag=0.5)
    now[0] += 30
    assert samples_of(WorkerMetrics("task").page([child]).text())["fennelq_loop_lag_seconds"] == 30


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (0, "finished"),
        (RECYCLED, "recycled"),
        (DRAINED, "drained"),
        (CANNOT_RUN, "unable"),
        (LIFESPAN_FAILED, "unable"),
        (1, "crashed"),
        (-9, "crashed"),
    ],
)
def test_the_ends_of_executors_are_counted_by_their_cause(code: int, cause: str) -> None:
    worker = WorkerMetrics("task")
    worker.add_ended(child_with(), code)
    samples = samples_of(worker.page([]).text())
    assert total(samples, "fennelq_executor_ends_total") == 1
    assert total(samples, "fennelq_executor_ends_total", cause=cause) == 1
    assert cause_of(child_with(), code) == cause


# Processes


async def test_no_counter_falls_when_executors_are_recycled_and_killed_under_load(
    workers: Workers, server: Server, ledger: Ledger, app: App, gate: shop.Gate
) -> None:
    """The sums are those of the ledger. A kill loses at most what the executor has counted in its last second."""
    port = Port()
    workers(
        *("-p", "4", "-c", "4", "--max-jobs", "40", "--health-port", f"127.0.0.1:{port.number}"),
        FENNELQ_LEASE="5",
    )
    seen: list[Samples] = [await aeventually(lambda: page(port.number), tolerate=(OSError,))]
    watching = asyncio.create_task(watch(port.number, seen))
    try:
        await finish(app, 240)
        await aeventually(lambda: total(seen[-1], "fennelq_runs_total") >= 240)
        assert ends(seen[-1]) == {"success": 240}
        assert sum(ledger.ends().values()) == sum(ledger.starts().values()) == 240
        assert total(seen[-1], "fennelq_run_duration_seconds_count") == 240
        assert total(seen[-1], "fennelq_wait_duration_seconds_count") == 240
        # The four that live have had at most 39 jobs each.
        await aeventually(lambda: total(seen[-1], "fennelq_executor_ends_total", cause="recycled") >= 3)
        # An executor with a job that does not end lives until it is killed, whatever the number of its jobs.
        held = await task_of(app, shop.hold).delay(str(gate))
        running = asyncio.create_task(finish(app, 160))
        await aeventually(lambda: sum(ledger.ends().values()) > 300 and ledger.starts()[held.id] == 1)
        (victim,) = {row.pid for row in ledger.read() if row.job_id == held.id}
        os.kill(victim, signal.SIGKILL)
        gate.open()
        await running
        await held.get(timeout=60)
        assert ledger.starts()[held.id] == 2, "it ran again after the kill"
        killed = [row for row in ledger.read() if row.pid == victim]
        unsure = [row for row in killed if row.kind == "end" and row.at > killed[-1].at - 2.5]
        await aeventually(lambda: total(seen[-1], "fennelq_executor_ends_total", cause="crashed") == 1)
        every = sum(ledger.ends().values())
        await aeventually(
            lambda: every - len(unsure) <= total(seen[-1], "fennelq_runs_total", outcome="success") <= every
        )
        # Those that the killed one had started run again.
        await aeventually(lambda: seen[-1]["fennelq_slots_busy"] == 0)
    finally:
        watching.cancel()
        port.release()
    for before, after in pairwise(seen):
        assert fallen(before, after) == {}
    assert len(seen) > 10


def ends(samples: Samples) -> dict[str, float]:
    outcomes = ("success", "retry", "snooze", "dead", "cancelled", "released", "lost")
    found = {outcome: total(samples, "fennelq_runs_total", outcome=outcome) for outcome in outcomes}
    return {outcome: number for outcome, number in found.items() if number}


async def finish(app: App, number: int) -> None:
    results = await app.enqueue([task_of(app, shop.nap).job(0.02) for _ in range(number)])
    for result in results:
        await result.get(timeout=60)


async def page(port: int) -> Samples:
    return await asyncio.to_thread(scraped, port)


async def watch(port: int, seen: list[Samples]) -> None:
    while True:
        seen.append(await page(port))
        await asyncio.sleep(0.1)


async def test_while_redis_is_away_the_page_answers(workers: Workers, server: Server) -> None:
    port = Port()
    workers("--health-port", f"127.0.0.1:{port.number}")
    await aeventually(lambda: ready(port.number), tolerate=(OSError,), what="the executor is ready")
    server.pause()
    samples = await page(port.number)
    assert samples["fennelq_slots"] == 4
    server.resume()
    server.kill()
    await aeventually(lambda: errors_of(port.number))
    port.release()


async def ready(port: int) -> bool:
    samples = await page(port)
    return total(samples, "fennelq_executors", state="ready") == 1 and samples["fennelq_slots"] == 4


async def errors_of(port: int) -> float:
    return total(await page(port), "fennelq_redis_errors_total", kind="connection")


def names(samples: Iterable[str]) -> set[str]:
    return {sample.partition("{")[0] for sample in samples}


def test_a_page_of_an_idle_worker_has_what_is_counted_without_jobs() -> None:
    text = WorkerMetrics("task").page([]).text()
    assert names(samples_of(text)) == {
        "fennelq_slots",
        "fennelq_slots_busy",
        "fennelq_unsettled",
        "fennelq_loop_lag_seconds",
        "fennelq_resident_memory_bytes",
        "fennelq_executors",
        "fennelq_executor_ends_total",
        "fennelq_leases_lost_total",
        "fennelq_redis_errors_total",
        "fennelq_speculations_total",
        "fennelq_build_info",
    }
