"""A user of Redis who may touch some of the queues only: an error reaches the callers that it concerns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fennelq import (
    App,
    AsyncResult,
    BlockingResult,
    BrokerUnavailable,
    ResultTimeout,
    Task,
    gather,
)
from fennelq.broker import verbs
from tests.features.conftest import MakeApp
from tests.kit.server import Server

DENIED = "does not permit a command or a key that fennelq needs"


@pytest.fixture
def limited(server: Server, make_app: MakeApp) -> Iterator[App]:
    """An app whose user may touch the queue `good`, and not the queue `bad`."""
    with server.client() as client:
        client.execute_command(
            *("ACL", "SETUSER", "limited", "on", ">pw", "+@all", "&*"),
            *("~fq:{shop/good}*", "~fq:{shop/default}*", "~fq:{shop}*"),
        )
        yield make_app(redis_url=server.url.replace("redis://", "redis://limited:pw@"))
        client.execute_command("ACL", "DELUSER", "limited")


def task_of(app: App) -> Task[[int], int]:
    @app.task(name="shop:add", queue="good")
    async def add(n: int) -> int:
        return n

    return add


async def test_what_may_not_be_sent_fails_alone_and_the_rest_of_the_call_is_sent(limited: App) -> None:
    add = task_of(limited)
    jobs = [add.options(queue=queue).job(n) for n, queue in enumerate(["good", "bad", "good", "bad"])]
    for sending in (limited.enqueue(jobs), asyncio.to_thread(limited.sync.enqueue, jobs)):
        with pytest.raises(BrokerUnavailable, match=DENIED) as failed:
            await sending
        assert (failed.value.jobs, failed.value.retriable) == ([jobs[1], jobs[3]], False)
    info = await limited.queues.info("good")
    assert info.waiting == 2


async def test_a_result_that_may_not_be_read_keeps_no_other_from_being_awaited(limited: App) -> None:
    there = await task_of(limited).delay(1)
    denied = "bad:1"
    asked: list[AsyncResult[int]] = [limited.result(denied), limited.result(there.id)]
    error, waits = await gather(*asked, timeout=0.2, return_exceptions=True)
    assert isinstance(error, BrokerUnavailable)
    assert isinstance(waits, ResultTimeout)
    app = limited.sync
    results: list[BlockingResult[int]] = [app.result(denied), app.result(there.id)]
    for timeout in (0.2, 0):
        error, waits = await asyncio.to_thread(app.gather, *results, timeout=timeout, return_exceptions=True)
        assert isinstance(error, BrokerUnavailable)
        assert isinstance(waits, ResultTimeout)


async def test_where_redis_refuses_to_look_up_the_executors_a_timeout_has_no_reason(
    server: Server, make_app: MakeApp
) -> None:
    with server.client() as client:
        client.execute_command(
            *("ACL", "SETUSER", "sender", "on", ">pw", "+@all", "&*"),
            *("~fq:{shop/default}*", "~fq:{shop}:queues"),
        )
        app = make_app(redis_url=server.url.replace("redis://", "redis://sender:pw@"))
        there = await task_of(app).options(queue="default").delay(1)
        with pytest.raises(ResultTimeout) as late:
            await there.get(timeout=0.05)
        assert late.value.reason is None
        with pytest.raises(ResultTimeout) as late:
            await asyncio.to_thread(app.sync.result(there.id).get, 0.05)
        assert late.value.reason is None
        client.execute_command("ACL", "DELUSER", "sender")


@pytest.mark.parametrize("timeout", [0.2, 0])
async def test_a_job_that_may_not_be_looked_at_is_not_taken_for_done(limited: App, timeout: float) -> None:
    app = limited.sync
    denied: list[BlockingResult[int]] = [app.result("bad:1")]

    def wait() -> None:
        app.wait(denied, timeout=timeout)

    def complete() -> None:
        list(app.as_completed(denied, timeout=timeout))

    for waiting in (wait, complete):
        with pytest.raises(BrokerUnavailable, match=DENIED):
            await asyncio.to_thread(waiting)


async def test_a_queue_that_may_not_be_looked_at_is_listed_as_damaged_beside_the_others(limited: App) -> None:
    await task_of(limited).delay(1)
    await limited.client.ask(verbs.queues.note_queues("shop", ["bad"]))
    for infos in (await limited.queues.list(), await asyncio.to_thread(limited.sync.queues.list)):
        by_name = {info.name: info for info in infos}
        assert by_name["good"].waiting == 1
        assert by_name["good"].damage == ""
        assert DENIED in by_name["bad"].damage
    with pytest.raises(BrokerUnavailable, match=DENIED):
        await limited.queues.info("bad")
