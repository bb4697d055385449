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
from tests.kit.waiting import aeventually
from tests.kit.workers import running

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
        assert (by_name["good"].damage, by_name["good"].unknown) == ("", False)
        assert DENIED in by_name["bad"].damage
        assert by_name["bad"].unknown
    with pytest.raises(BrokerUnavailable, match=DENIED):
        await limited.queues.info("bad")


async def test_the_running_jobs_of_all_queues_are_those_of_the_queues_that_may_be_looked_at(
    limited: App,
) -> None:
    await limited.client.ask(verbs.queues.note_queues("shop", ["bad"]))
    assert await limited.queues.running() == []
    with pytest.raises(BrokerUnavailable, match=DENIED):
        await limited.queues.running("bad")


def viewer(server: Server, make_app: MakeApp) -> App:
    """An app whose user may only read, as in the guide about deploying."""
    with server.client() as client:
        client.execute_command(
            *("ACL", "SETUSER", "viewer", "on", ">pw", "resetkeys", "%R~fq:{shop*", "+@read", "+@connection"),
            *("+time", "+info", "+evalsha_ro", "+eval_ro"),
        )
    return make_app(redis_url=server.url.replace("redis://", "redis://viewer:pw@"))


@pytest.fixture(autouse=True)
def no_viewer_stays(server: Server) -> Iterator[None]:
    """The next test has the same server."""
    yield
    with server.client() as client:
        client.execute_command("ACL", "DELUSER", "viewer")


async def test_a_user_who_may_only_read_sees_the_queues(server: Server, make_app: MakeApp) -> None:
    await task_of(make_app()).delay(1)
    app = viewer(server, make_app)
    infos = {info.name: info for info in await app.queues.list()}
    assert (infos["good"].waiting, infos["good"].unknown) == (1, False)
    assert await app.queues.running() == []
    assert [job.task for job in await app.queues.peek("good")] == ["shop:add"]
    with pytest.raises(BrokerUnavailable, match=DENIED):
        await app.queues.purge("good")


async def test_a_search_finds_the_jobs_of_the_queues_that_may_be_looked_at(limited: App) -> None:
    there = await task_of(limited).delay(1)
    await limited.client.ask(verbs.queues.note_queues("shop", ["bad"]))
    found = list[str]()

    async def find() -> None:
        async for job in limited.jobs.find(""):
            found.append(job.id)

    with pytest.raises(BrokerUnavailable, match="problem with queue 'bad'") as caught:
        await find()
    assert not caught.value.retriable
    assert found == [there.id]


async def test_a_user_who_may_only_read_can_call_everything_that_reads(
    server: Server, make_app: MakeApp
) -> None:
    """A script that reads and is not marked as one would need the right to write its keys."""
    owner = make_app()

    @owner.task(name="shop:charge", queue="good", retries=0)
    async def charge(n: int) -> None:
        if n:
            raise ValueError("no money")
        await asyncio.sleep(600)

    dead, runs = await charge.delay(1), await charge.delay(0)
    later = await charge.options(delay=600).delay(1)
    async with running(owner):
        await aeventually(lambda: owner.dlq.get(dead.id))
        await aeventually(lambda: owner.queues.running("good"))
        app = viewer(server, make_app)
        assert await app.dlq.count(where='"no money"') == 1
        [group] = await app.dlq.groups()
        assert (group.jobs, (await app.dlq.list(fingerprint=group.fingerprint))[0].id) == (1, dead.id)
        plan = await app.dlq.plan()
        assert (plan.count, plan.ready) == (1, 1)
        assert len([line async for line in app.dlq.export()]) == 1
        assert [job.id for job in await app.queues.running()] == [runs.id]
        assert {job.id async for job in app.jobs.find("task:charge")} == {dead.id, runs.id, later.id}
        assert (await app.operations.plan("run", "state:scheduled")).total == 1
        for job, begin in ((dead, "It died"), (runs, "It has been running"), (later, "It is scheduled")):
            story = await app.jobs.story(job.id)
            assert story is not None
            assert story.sentence.startswith(begin)
        assert len(await app.executors.list()) == 1
        assert (await app.audit.list(), await app.operations.list()) == ([], [])
        for act in (
            app.dlq.replay(),
            app.dlq.purge(all=True),
            app.jobs.retry(dead.id),
            app.jobs.run(later.id),
        ):
            with pytest.raises(BrokerUnavailable, match=DENIED):
                await act
        assert await owner.dlq.count() == 1
        await runs.cancel(wait=20)
    await later.cancel()
