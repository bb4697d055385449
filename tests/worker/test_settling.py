"""Settling: outcomes are written down in batches, whatever the network does, and one never takes another with it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from fennelq import App, Status, TaskFailed
from fennelq.broker import verbs
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import QueueKeys
from fennelq.broker.verbs.runs import Settled
from fennelq.model.job import Delivery
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.outcome import succeeded
from fennelq.worker.running.held import Answer
from fennelq.worker.running.settler import Settler
from tests.kit.jobs import sent
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running
from tests.worker import shop
from tests.worker.states import Answered, state_of

LIFETIMES = Lifetimes(record_ms=60_000, failure_ms=60_000)
DONE = succeeded(b"42", 60_000)


class Answers:
    """A settler, and its answers."""

    def __init__(self, broker: Broker) -> None:
        self.by_key: dict[str, Answer] = {}
        state = state_of(broker)
        state.held = Answered(self._hear)
        self.settler = Settler(state)

    def _hear(self, settled: Settled, answer: Answer) -> None:
        self.by_key[settled.delivery.key] = answer


async def deliveries(broker: Broker, keys: QueueKeys, number: int) -> list[Delivery]:
    """So many jobs in our hands."""
    jobs = [sent(keys.queue, str(n), "shop:note") for n in range(number)]
    for start in range(0, number, 100):
        await broker.run(verbs.jobs.enqueue(keys, jobs[start : start + 100]))
    verb = verbs.runs.fetch(keys, consumer="anna", free=number, lanes=["s"], lifetimes=LIFETIMES)
    return (await broker.run(verb)).deliveries


async def test_what_finishes_together_is_one_script_call(
    broker: Broker, mail: QueueKeys, server: Server
) -> None:
    held = await deliveries(broker, mail, 250)
    # A server that does not know the script yet is asked twice for the first page, whichever test runs first.
    await broker.run(verbs.runs.finish(mail, [], LIFETIMES))
    answers = Answers(broker)
    settler = answers.settler
    before = scripts(server)
    for delivery in held:
        settler.settle_now(delivery, DONE)
    await settler.drain()
    assert answers.by_key == {str(n): Answer.SETTLED for n in range(250)}
    assert scripts(server) - before == 3


async def test_a_reply_that_was_lost_makes_no_outcome_count_twice(
    broker: Broker, mail: QueueKeys, proxy: Proxy
) -> None:
    held = await deliveries(broker, mail, 200)
    through = Broker(address_of(proxy.url))
    answers = Answers(through)
    settler = answers.settler
    fate = random.Random(7)
    proxy.drop_replies(lambda _: fate.random() < 0.5, command="EVALSHA", cut=True)
    for start in range(0, 200, 20):
        for delivery in held[start : start + 20]:
            settler.settle_now(delivery, DONE)
        await settler.drain()
    await through.close()
    assert proxy.counters.dropped > 0
    assert len(answers.by_key) == 200
    assert set(answers.by_key.values()) == {Answer.SETTLED, Answer.SETTLED_BEFORE}
    assert (await broker.ask(verbs.queues.stats(mail)))["S"] == 200


async def test_an_outcome_of_a_job_that_is_no_longer_ours_is_refused(broker: Broker, mail: QueueKeys) -> None:
    held = await deliveries(broker, mail, 2)
    await broker.run(verbs.runs.release(mail, [(held[0].lane, held[0].entry)]))
    answers = Answers(broker)
    settler = answers.settler
    for delivery in held:
        settler.settle_now(delivery, DONE)
    await settler.drain()
    assert answers.by_key == {"0": Answer.LOST, "1": Answer.SETTLED}
    assert await broker.ask(verbs.jobs.status(mail, "0")) is Status.SENT


async def test_outcomes_wait_for_a_server_that_is_away(
    app: App, server: Server, proxy: Proxy, gate: shop.Gate
) -> None:
    runs = Counter[int]()
    may_end = asyncio.Event()

    @app.task
    async def note(n: int) -> int:
        runs[n] += 1
        await may_end.wait()
        return n

    results = await note.map(range(20))
    through = shop.with_tasks_of(app, redis_url=proxy.url)
    async with running(through, concurrency=20) as executor:
        await aeventually(lambda: len(runs) == 20)
        proxy.refuse()
        may_end.set()
        await aeventually(lambda: executor.slots.taken == 0)
        assert {await result.status() for result in results} == {Status.EXECUTING}
        proxy.up()
        assert [await result.get(timeout=30) for result in results] == list(range(20))
    await through.close()
    assert runs == Counter(range(20))


@pytest.mark.audit(skip="a record was spoiled on purpose")
async def test_a_job_that_cannot_be_settled_is_dead_as_broken_and_takes_no_other_with_it(
    app: App, server: Server
) -> None:
    may_end = asyncio.Event()
    started = Counter[int]()

    @app.task
    async def note(n: int) -> int:
        started[n] += 1
        await may_end.wait()
        return n

    results = await note.map(range(10))
    async with running(app, concurrency=10):
        await aeventually(lambda: len(started) == 10)
        queue, _, key = results[4].id.partition(":")
        with server.client() as client:
            client.set(app.client.keys(queue).result(key), "not a list")
        may_end.set()
        for n, result in enumerate(results):
            if n != 4:
                assert await result.get(timeout=30) == n
        with pytest.raises(TaskFailed, match="Broken"):
            await results[4].get(timeout=30)
        (letter,) = await app.dlq.list()
    assert (letter.id, letter.reason) == (results[4].id, "broken")


def scripts(server: Server) -> int:
    with server.client() as client:
        stats = client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "eval"))
