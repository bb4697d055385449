"""Waiting for results: any number of waiters, few connections, and never for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
import redis

from fennelq import (
    App,
    AsyncResult,
    BrokerUnavailable,
    InvalidJobId,
    JobCancelled,
    JobExpired,
    ResultExpired,
    ResultTimeout,
    Status,
    Task,
    TaskFailed,
    as_completed,
    gather,
    wait,
)
from fennelq.broker import verbs
from fennelq.sync.sync import BlockingResult
from fennelq.waiting.looks import watched
from tests.features.conftest import MakeApp, new_namespace, refusals, user_who_may_not, waiters_on
from tests.kit.ageing import age
from tests.kit.apps import LocalApp
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually, quickest
from tests.kit.workers import running

T = TypeVar("T")

SLACK = 0.25
"""Timeouts are honoured within so many seconds. Of several attempts the quickest counts: machines are busy."""


class Gate:
    """A task that ends when it is let through."""

    def __init__(self, app: App, **options: Any) -> None:
        self.open = asyncio.Event()

        @app.task(retries=0, name="shop:pass_through", **options)
        async def pass_through(n: int) -> int:
            await self.open.wait()
            if n < 0:
                raise ValueError("less than nothing")
            return n

        self.task: Task[[int], int] = pass_through


# Any number of waiters


async def test_fifty_waiters_and_two_late_callers_of_one_result_all_get_it(
    app: App, make_app: MakeApp, server: Server
) -> None:
    gate = Gate(app)
    async with running(app, concurrency=1):
        result = await gate.task.delay(7)
        elsewhere = make_app()
        handles = [result, app.result(result.id), elsewhere.result(result.id)]
        waiters = [asyncio.create_task(handles[i % 3].get(timeout=30)) for i in range(50)]
        await aeventually(lambda: subscribed(server, 2))
        await aeventually(lambda: watchers(app, result.id, 1))
        gate.open.set()
        assert await asyncio.gather(*waiters) == [7] * 50
        assert await result.get(timeout=30) == 7
        assert await elsewhere.result(result.id).get(timeout=30) == 7


async def test_a_thousand_waiting_coroutines_need_few_connections_and_all_return(
    server: Server, app: App
) -> None:
    gate = Gate(app)
    with server.client() as client:
        results = await app.enqueue([gate.task.job(n) for n in range(1000)])
        before = connections(client)
        waiters = [asyncio.create_task(result.get(timeout=30)) for result in results]
        await aeventually(lambda: watchers(app, results[-1].id, 1))
        assert connections(client) - before <= 4
        assert connections(client) <= 20
        gate.open.set()
        async with running(app, concurrency=32):
            assert await asyncio.gather(*waiters) == list(range(1000))


async def test_a_cancelled_waiter_destroys_nothing(app: App) -> None:
    gate = Gate(app)
    async with running(app, concurrency=1):
        result = await gate.task.delay(7)
        waiters = [asyncio.create_task(result.get(timeout=30)) for _ in range(30)]
        await aeventually(lambda: watchers(app, result.id, 1))
        given_up = [asyncio.create_task(result.get()) for _ in range(5)]
        for waiter in [*given_up, *waiters[::3]]:
            waiter.cancel()
        gate.open.set()
        values = await asyncio.gather(*waiters, return_exceptions=True)
        assert [v for i, v in enumerate(values) if i % 3] == [7] * 20
        assert all(isinstance(values[i], asyncio.CancelledError) for i in range(0, 30, 3))
        assert await result.get(timeout=30) == 7


# Never for ever


async def test_an_unknown_job_raises_at_once(app: App) -> None:
    with pytest.raises(ResultExpired) as expired:
        await soon(app.result("mail:missing").get())
    assert expired.value.job_id == "mail:missing"


async def test_a_dead_job_raises_what_it_died_of(app: App) -> None:
    gate = Gate(app)
    gate.open.set()
    async with running(app):
        result = await gate.task.delay(-1)
        for _ in range(2):
            with pytest.raises(TaskFailed, match="less than nothing"):
                await soon(result.get())


async def test_a_dead_job_still_raises_its_failure_when_its_result_has_expired(make_app: MakeApp) -> None:
    app = make_app(failure_ttl=0.05)
    gate = Gate(app)
    gate.open.set()
    async with running(app):
        result = await gate.task.delay(-1)
        await aeventually(lambda: ended_without_result(app, result.id))
        with pytest.raises(TaskFailed, match="less than nothing") as failed:
            await soon(result.get())
    assert failed.value.tries == 1


async def test_a_cancelled_job_raises_whether_one_waits_or_comes_late(app: App) -> None:
    gate = Gate(app)
    result = await gate.task.delay(7)
    waiter = asyncio.create_task(result.get())
    await aeventually(lambda: watchers(app, result.id, 1))
    assert await result.cancel()
    for get in (waiter, result.get()):
        with pytest.raises(JobCancelled) as cancelled:
            await soon(get)
        assert (cancelled.value.job_id, cancelled.value.reason) == (result.id, "cancelled")


async def test_an_expired_job_raises_whether_one_waits_or_comes_late(app: App) -> None:
    gate = Gate(app)
    result = await gate.task.options(expires=0.001).delay(7)
    waiter = asyncio.create_task(result.get())
    async with running(app):
        for get in (waiter, result.get()):
            with pytest.raises(JobExpired):
                await soon(get)


async def test_a_waiter_whose_job_is_removed_learns_it_at_the_next_look(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message announces that a record vanished (a flush, a DEL): that is what looking again is for."""
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.05)
    gate = Gate(app)
    result = await gate.task.delay(7)
    waiter = asyncio.create_task(result.get())
    await aeventually(lambda: watchers(app, result.id, 1))
    await flush(app)
    with pytest.raises(ResultExpired):
        await soon(waiter)


@pytest.mark.parametrize("timeout", [0.05, 0.3])
async def test_a_timeout_is_honoured(app: App, timeout: float) -> None:
    gate = Gate(app)
    result = await gate.task.delay(7)

    async def wait_too_short() -> None:
        with pytest.raises(ResultTimeout, match=r"ask again, or cancel it") as late:
            await result.get(timeout=timeout)
        assert isinstance(late.value, TimeoutError)
        assert (late.value.job_id, late.value.timeout) == (result.id, timeout)

    assert timeout <= await quickest(wait_too_short, timeout + SLACK) < timeout + SLACK


async def test_a_job_whose_waiter_ran_out_of_time_goes_on_and_may_be_asked_again(app: App) -> None:
    gate = Gate(app)
    async with running(app):
        result = await gate.task.delay(7)
        with pytest.raises(ResultTimeout):
            await result.get(timeout=0.05)
        gate.open.set()
        assert await result.get(timeout=30) == 7


async def test_a_timeout_is_honoured_while_redis_does_not_answer(proxy: Proxy, make_app: MakeApp) -> None:
    app = make_app(redis_url=proxy.url)
    result = await Gate(app).task.delay(7)
    proxy.blackhole()

    async def wait_too_short() -> None:
        with pytest.raises(ResultTimeout):
            await result.get(timeout=0.3)

    assert 0.3 <= await quickest(wait_too_short, 0.3 + SLACK) < 0.3 + SLACK


async def test_without_redis_waiting_ends_within_its_bound(make_app: MakeApp, server: Server) -> None:
    app = make_app(enqueue_timeout=0.3)
    result = await Gate(app).task.delay(7)
    server.kill()
    with pytest.raises(BrokerUnavailable):
        await soon(result.get())


# What a network does


@pytest.mark.parametrize("how", ["cut by the network", "killed by the server"])
async def test_a_waiter_survives_the_loss_of_its_connection(
    proxy: Proxy, server: Server, make_app: MakeApp, app: App, how: str
) -> None:
    gate = Gate(app)
    caller = make_app(redis_url=proxy.url)
    async with running(app):
        result = caller.result((await gate.task.delay(7)).id)
        waiters = [asyncio.create_task(result.get(timeout=30)) for _ in range(5)]
        await aeventually(lambda: watchers(app, result.id, 1))
        for _ in range(3):
            if how == "cut by the network":
                assert proxy.cut_all()
            else:
                kill_connections(server, proxy)
            await aeventually(lambda: subscribed(server, 1))
        gate.open.set()
        assert await asyncio.gather(*waiters) == [7] * 5


async def test_a_result_published_while_a_waiter_is_cut_off_is_found_when_it_is_back(
    proxy: Proxy, make_app: MakeApp, app: App
) -> None:
    gate = Gate(app)
    caller = make_app(redis_url=proxy.url)
    async with running(app):
        sent = await gate.task.delay(7)
        waiter = asyncio.create_task(caller.result(sent.id).get(timeout=30))
        await aeventually(lambda: watchers(app, sent.id, 1))
        proxy.refuse()
        gate.open.set()
        assert await sent.get(timeout=30) == 7
        assert not waiter.done()
        proxy.up()
        assert await soon(waiter) == 7


async def test_a_waiter_whose_server_comes_back_without_its_data_gets_an_error(
    app: App, server: Server
) -> None:
    gate = Gate(app)
    result = await gate.task.delay(7)
    waiter = asyncio.create_task(result.get())
    await aeventually(lambda: watchers(app, result.id, 1))
    server.kill()
    server.start()
    with pytest.raises(ResultExpired):
        await soon(waiter)


async def test_a_lost_message_is_made_up_for_by_looking_again(
    proxy: Proxy, make_app: MakeApp, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.2)
    gate = Gate(app)
    caller = make_app(redis_url=proxy.url)
    async with running(app):
        sent = await gate.task.delay(7)
        waiter = asyncio.create_task(caller.result(sent.id).get(timeout=30))
        await aeventually(lambda: watchers(app, sent.id, 1))
        channel = next(iter(await channels(app, sent.id)))
        await forget_watchers(app, sent.id)
        gate.open.set()
        assert await soon(waiter) == 7
        assert channel


async def test_after_a_silent_network_no_connection_is_left_over(
    proxy: Proxy, make_app: MakeApp, server: Server, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every attempt to subscribe that is not answered must take its connection with it."""
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 0.05)
    gate = Gate(app)
    caller = make_app(redis_url=proxy.url)
    async with running(app):
        sent = await gate.task.delay(7)
        waiter = asyncio.create_task(caller.result(sent.id).get(timeout=30))
        await aeventually(lambda: watchers(app, sent.id, 1))
        proxy.blackhole()
        proxy.cut_all()
        attempts = proxy.counters.connections
        await aeventually(lambda: proxy.counters.connections >= attempts + 4)
        monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 5.0)
        proxy.up()
        gate.open.set()
        assert await soon(waiter) == 7
        await aeventually(lambda: subscribed(server, at_most=2))


async def test_a_result_with_a_ttl_of_one_second_ends_the_waiting_of_those_who_come_too_late(
    make_app: MakeApp, server: Server
) -> None:
    app = make_app(result_ttl=1, record_ttl=1)
    gate = Gate(app)
    gate.open.set()
    async with running(app):
        result = await gate.task.delay(7)
        assert await result.get(timeout=30) == 7
    age(server, 599)  # the record has a second left, too
    await aeventually(lambda: raises_expired(result))


async def test_closing_the_app_ends_the_waiting_of_all_callers(app: App) -> None:
    gate = Gate(app)
    result = await gate.task.delay(7)
    waiter = asyncio.create_task(result.get())
    await aeventually(lambda: watchers(app, result.id, 1))
    await app.close()
    with pytest.raises(BrokerUnavailable, match="closed"):
        await soon(waiter)
    assert await result.status() is Status.SENT


# One bad id


BAD_IDS: list[Any] = ["mail:\ud800", "mail:7\nmail:8", "mail:7 8", "mail", "mail:" + "x" * 129, 7, None]


@pytest.mark.parametrize("bad", BAD_IDS, ids=ascii)
async def test_a_text_that_is_not_an_id_is_refused_wherever_it_enters(app: App, bad: Any) -> None:
    handle = AsyncResult[Any](app, bad, None)
    with pytest.raises(InvalidJobId):
        app.result(bad)
    for call in (
        handle.get(),
        handle.get(timeout=0),
        handle.get(timeout=30),
        handle.status(),
        handle.info(),
        handle.history(),
        handle.cancel(),
        app.dlq.get(bad),
    ):
        with pytest.raises(InvalidJobId, match="is not a job id"):
            await soon(call)


async def test_one_bad_id_fails_its_own_caller_only(app: App) -> None:
    gate = Gate(app)
    gate.open.set()
    async with running(app):
        results: list[AsyncResult[Any]] = [*await gate.task.map(range(20))]
        results[7:7] = [AsyncResult(app, bad, None) for bad in BAD_IDS]
        values = await soon(gather(*results, return_exceptions=True))
    assert [value for value in values if isinstance(value, int)] == list(range(20))
    assert [type(value) for value in values[7 : 7 + len(BAD_IDS)]] == [InvalidJobId] * len(BAD_IDS)


async def test_a_batch_of_looks_answers_item_by_item(app: App) -> None:
    """The second line of defence, behind the check of each id: what cannot be looked at fails alone."""
    gate = Gate(app)
    gate.open.set()
    async with running(app):
        results = await gate.task.map(range(3))
        assert await gather(*results, timeout=30) == [0, 1, 2]
    ids = [results[0].id, "mail:\ud800", results[1].id, results[0].id, "mail:missing", results[2].id]
    answers = await soon(app.client.converse(watched(app.namespace, "", ids, app.lifetimes)))
    assert isinstance(answers.pop(1), InvalidJobId)
    envelopes = [answer[2] for answer in answers if not isinstance(answer, Exception)]
    assert envelopes == [b'{"ok":0}', b'{"ok":1}', b'{"ok":0}', None, b'{"ok":2}']


async def test_a_page_that_fails_as_a_whole_is_looked_at_one_by_one(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(app)
    gate.open.set()
    async with running(app):
        results = await gate.task.map(range(5))
        assert await gather(*results, timeout=30) == list(range(5))
        broken = results[2].id.partition(":")[2]
        real = verbs.jobs.watch

        def watch(keys: Any, channel: str, jobs: Any, lifetimes: Any) -> Any:
            if broken in jobs:
                raise RuntimeError("cannot be packed")
            return real(keys, channel, jobs, lifetimes)

        monkeypatch.setattr(verbs.jobs, "watch", watch)
        values = await soon(gather(*results, return_exceptions=True))
    assert [value for value in values if isinstance(value, int)] == [0, 1, 3, 4]
    assert str(values[2]) == "cannot be packed"


async def test_values_go_to_their_own_jobs_whatever_the_order_of_the_batch(app: App) -> None:
    gate = Gate(app)
    gate.open.set()
    async with running(app, concurrency=32):
        tasks = [gate.task.options(queue=f"q{n % 3}") for n in range(250)]
        results = await app.enqueue([task.job(n) for n, task in enumerate(tasks)])
        assert await gather(*results, timeout=20) == list(range(250))
        order = [*range(0, 250, 2), *range(249, 0, -2), *range(0, 250, 7)]
        late = [app.result(results[n].id) for n in order]
        assert await gather(*late, timeout=20) == order
        assert await gather(*late, timeout=0) == order


# Looking without waiting


async def test_with_a_timeout_of_zero_one_gets_what_is_there(app: App) -> None:
    gate = Gate(app)
    result = await gate.task.delay(7)
    with pytest.raises(ResultTimeout) as early:
        await soon(result.get(timeout=0))
    assert (early.value.job_id, early.value.timeout) == (result.id, 0)
    gate.open.set()
    async with running(app):
        assert await result.get(timeout=30) == 7
        failed = await gate.task.delay(-1)
        with pytest.raises(TaskFailed):
            await failed.get(timeout=30)
    assert await result.get(timeout=0) == 7
    assert await gather(result, timeout=0) == [7]
    with pytest.raises(TaskFailed, match="less than nothing"):
        await failed.get(timeout=0)
    with pytest.raises(ResultExpired):
        await app.result("mail:missing").get(timeout=0)


async def test_several_results_are_looked_at_with_a_timeout_of_zero(app: App) -> None:
    gate = Gate(app)
    slow = await gate.task.options(delay=500).delay(1)
    gate.open.set()
    async with running(app):
        quick = await gate.task.delay(2)
        assert await quick.get(timeout=30) == 2
    assert await wait([slow, quick], timeout=0) == ({quick}, {slow})
    assert [result async for result in as_completed([quick], timeout=0)] == [quick]
    ended = as_completed([slow, quick], timeout=0)
    assert await anext(ended) == quick
    with pytest.raises(TimeoutError, match="1 of 2"):
        await anext(ended)
    assert await slow.cancel()


@pytest.mark.audit(unfinished=True)
async def test_looking_registers_nothing_and_needs_no_connection_of_its_own(
    app: App, proxy: Proxy, make_app: MakeApp
) -> None:
    result = await Gate(app).task.delay(7)
    poller = make_app(redis_url=proxy.url)
    for _ in range(100):
        with pytest.raises(ResultTimeout):
            await poller.result(result.id).get(timeout=0)
    assert await channels(app, result.id) == []
    assert proxy.counters.connections == 1


@pytest.mark.audit(unfinished=True)
def test_a_process_that_polls_registers_once_however_many_loops_it_runs(
    redis_url: str, server: Server
) -> None:
    async def poll(app: App, job_id: str) -> None:
        with pytest.raises(ResultTimeout):
            await app.result(job_id).get(timeout=0.02)

    async def send() -> str:
        async with LocalApp("shop", redis_url=redis_url) as app:
            return (await Gate(app).task.delay(7)).id

    async def look(app: App, job_id: str) -> list[str]:
        return await channels(app, job_id)

    job_id = asyncio.run(send())

    async def once(work: Callable[[App, str], Coroutine[Any, Any, T]]) -> T:
        async with LocalApp("shop", redis_url=redis_url) as app:
            return await work(app, job_id)

    for _ in range(10):
        asyncio.run(once(poll))
    assert len(asyncio.run(once(look))) == 1


# Without the right to subscribe


@pytest.mark.parametrize("right", ["resetchannels", "-subscribe"])
async def test_without_the_right_to_subscribe_results_are_polled_for(
    server: Server, make_app: MakeApp, caplog: pytest.LogCaptureFixture, right: str
) -> None:
    app = make_app(namespace=new_namespace())
    gate = Gate(app)
    with user_who_may_not(server, right) as url:
        deaf = make_app(name="deaf", namespace=app.namespace, redis_url=url)
        before = subscribe_calls(server)
        async with running(app):
            sent = await gate.task.map(range(20))
            handles = [deaf.result(result.id) for result in sent]
            waiters = [asyncio.create_task(handle.get(timeout=30)) for handle in handles * 2]
            await aeventually(lambda: refusals(caplog))
            await aeventually(lambda: watchers(app, sent[-1].id, 1))
            gate.open.set()
            assert await soon(asyncio.gather(*waiters)) == [*range(20)] * 2
            assert await handles[3].get(timeout=30) == 3
            failed = deaf.result((await gate.task.delay(-1)).id)
            with pytest.raises(TaskFailed, match="less than nothing"):
                await soon(failed.get())
            await app.close()
        assert subscribe_calls(server) - before <= 1 + 1  # the refused one, and the one of `app`
    (line,) = refusals(caplog)
    assert line.levelname == "WARNING"
    assert "NOPERM" in line.getMessage()


async def test_a_wrong_password_raises_at_once_and_is_not_taken_for_a_refused_subscription(
    make_app: MakeApp, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = make_app(redis_url=redis_url.replace("redis://", "redis://stranger:wr0ng@"))
    with pytest.raises(BrokerUnavailable, match="WRONGPASS"):
        await soon(stranger.result("mail:7").get())
    with pytest.raises(BrokerUnavailable, match="WRONGPASS"):
        await asyncio.to_thread(BlockingResult[int](stranger, "mail:7", None).get)
    assert not caplog.records


async def test_a_refused_subscription_is_tried_again_now_and_then(
    server: Server, app: App, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.waiting.waiting.REFUSED_FOR", 0.0)
    gate = Gate(app)
    with user_who_may_not(server, "resetchannels") as url, server.client() as client:
        deaf = make_app(redis_url=url)
        before = subscribe_calls(server)
        async with running(app):
            sent = await gate.task.delay(7)
            waiter = asyncio.create_task(deaf.result(sent.id).get(timeout=30))
            await aeventually(lambda: subscribe_calls(server) > before)
            assert not subscribed(server, 1)
            client.execute_command("ACL", "SETUSER", "deaf", "allchannels")
            await aeventually(lambda: subscribed(server, 1))
            gate.open.set()
            assert await soon(waiter) == 7


async def test_results_are_polled_for_while_there_are_too_many_clients_to_subscribe(
    server: Server, app: App, make_app: MakeApp
) -> None:
    gate = Gate(app)
    caller = make_app()
    async with running(app):
        sent = await gate.task.delay(7)
        handle = caller.result(sent.id)
        assert await handle.status() in (Status.SENT, Status.EXECUTING)
        with server.client() as client:
            before = str(client.config_get("maxclients")["maxclients"])
            client.config_set("maxclients", 1)
            try:
                rejected = rejected_connections(client)
                waiter = asyncio.create_task(handle.get(timeout=30))
                await aeventually(lambda: rejected_connections(client) > rejected)
                gate.open.set()
                assert await soon(waiter) == 7
            finally:
                client.config_set("maxclients", before)


async def test_a_message_that_is_not_text_harms_no_waiter(app: App, server: Server) -> None:
    gate = Gate(app)
    async with running(app):
        result = await gate.task.delay(7)
        waiter = asyncio.create_task(result.get(timeout=30))
        await aeventually(lambda: watchers(app, result.id, 1))
        with server.client() as client:
            for channel in await channels(app, result.id):
                for junk in (b"\xff\xfe\n{}", b"", b"\n", b"mail:missing\nx"):
                    client.publish(channel, junk)
        gate.open.set()
        assert await soon(waiter) == 7
        assert subscribed(server, 1, at_most=2)


async def test_an_end_that_is_published_before_the_look_is_answered_is_not_lost(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two connections: the message may overtake the answer that the job goes on."""
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 1000.0)
    gate = Gate(app)
    broker = app.client.broker
    real = broker.run

    async def overtaken(verb: Any, *how: Any) -> Any:
        answers = await real(verb, *how)
        if verb.script.name == "watch":
            gate.open.set()
            # The server publishes the end before it replies with the new status.
            await aeventually(lambda: has_ended(result))
            await result.status()
        return answers

    async with running(app):
        result = await gate.task.delay(7)
        await aeventually(lambda: is_executing(result))
        monkeypatch.setattr(broker, "run", overtaken)
        assert await soon(result.get()) == 7
        monkeypatch.undo()


async def test_a_result_published_while_a_waiter_was_cut_off_is_looked_up_as_soon_as_it_is_back(
    proxy: Proxy, make_app: MakeApp, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the next regular look, which here never comes."""
    monkeypatch.setattr("fennelq.waiting.waiting.RECHECK", 1000.0)
    gate = Gate(app)
    caller = make_app(redis_url=proxy.url)
    async with running(app):
        sent = await gate.task.map(range(5))
        waiters = [asyncio.create_task(caller.result(one.id).get(timeout=30)) for one in sent]
        await aeventually(lambda: watchers(app, sent[-1].id, 1))
        proxy.refuse()
        gate.open.set()
        assert await gather(*sent, timeout=30) == list(range(5))
        proxy.up()
        assert await soon(asyncio.gather(*waiters)) == list(range(5))


# Several results


async def test_gather_gives_the_values_in_order(app: App) -> None:
    gate = Gate(app)
    gate.open.set()
    async with running(app):
        results = await gate.task.map(range(20))
        assert await gather(*results, timeout=30) == list(range(20))
        assert await gather() == []


async def test_gather_raises_the_first_exception_or_gives_them_in_their_places(app: App) -> None:
    gate = Gate(app)
    gate.open.set()
    async with running(app):
        results = await gate.task.map([1, -1, 2])
        with pytest.raises(TaskFailed, match="less than nothing"):
            await gather(*results, timeout=30)
        values = await gather(*results, timeout=30, return_exceptions=True)
    assert values[0::2] == [1, 2]
    assert isinstance(values[1], TaskFailed)


async def test_wait_separates_the_ended_from_those_that_go_on(app: App) -> None:
    gate = Gate(app)
    slow = await gate.task.options(delay=500).delay(1)
    gate.open.set()
    async with running(app):
        quick, failed = await gate.task.map([2, -1])
        await gather(quick, failed, timeout=30, return_exceptions=True)
        done, pending = await wait([slow, quick, failed], timeout=0.1)
    assert (done, pending) == ({quick, failed}, {slow})
    assert await slow.cancel()
    assert await wait([]) == (set(), set())


async def test_wait_for_the_first_returns_with_the_first(app: App) -> None:
    gate = Gate(app)
    slow = await gate.task.options(delay=500).delay(1)
    gate.open.set()
    async with running(app):
        quick = await gate.task.delay(2)
        done, pending = await soon(wait([slow, quick], return_when="first"))
    assert (done, pending) == ({quick}, {slow})
    assert await slow.cancel()


async def test_as_completed_gives_each_result_when_its_job_has_ended(app: App) -> None:
    gates = [asyncio.Event() for _ in range(3)]

    @app.task
    async def pass_through(n: int) -> int:
        await gates[n].wait()
        return n

    async with running(app):
        results = await pass_through.map(range(3))
        order = [2, 0, 1]
        seen: list[int] = []
        gates[order[0]].set()
        async for result in as_completed(results, timeout=30):
            seen.append(await result.get())
            if len(seen) < 3:
                gates[order[len(seen)]].set()
    assert seen == order


async def test_as_completed_raises_when_the_time_is_up(app: App) -> None:
    gate = Gate(app)
    results = await gate.task.map([1, 2])
    with pytest.raises(TimeoutError, match="2 of 2"):
        await anext(as_completed(results, timeout=0.05))


async def soon(what: Awaitable[T]) -> T:
    """Never for ever: far less than a test's own limit."""
    async with asyncio.timeout(20):
        return await what


def subscribe_calls(server: Server) -> int:
    """How many SUBSCRIBE the server has got, refused ones included."""
    with server.client() as client:
        stats = client.info("commandstats").get("cmdstat_subscribe", {"calls": 0, "rejected_calls": 0})
    return int(stats["calls"]) + int(stats["rejected_calls"])


def connections(client: redis.Redis) -> int:
    return len(client.client_list())


def rejected_connections(client: redis.Redis) -> int:
    return int(client.info("stats")["rejected_connections"])


def subscribed(server: Server, at_least: int = 0, *, at_most: int = 1000) -> bool:
    """Whether so many connections listen to a channel."""
    return at_least <= waiters_on(server) <= at_most


def kill_connections(server: Server, proxy: Proxy) -> None:
    """As an operator would, or a server that restarts: all connections but our own."""
    del proxy
    with server.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


async def channels(app: App, job_id: str) -> list[str]:
    from fennelq.broker.verb import Command

    queue, _, key = job_id.partition(":")
    record = app.client.keys(queue).record(key)
    channels = await app.client.ask(Command(["HGET", record, "W"], text_or_nothing))
    return channels.split()


def text_or_nothing(reply: bytes | None) -> str:
    return (reply or b"").decode()


async def watchers(app: App, job_id: str, number: int) -> bool:
    """Whether so many processes wait for the job's end."""
    return len(await channels(app, job_id)) == number


async def forget_watchers(app: App, job_id: str) -> None:
    from fennelq.broker.verb import Command

    queue, _, key = job_id.partition(":")
    await app.client.ask(Command(["HDEL", app.client.keys(queue).record(key), "W"], int))


async def flush(app: App) -> None:
    from fennelq.broker.verb import Command

    await app.client.ask(Command(["FLUSHALL"], bytes))


async def ended_without_result(app: App, job_id: str) -> bool:
    from fennelq.broker.verb import Command

    queue, _, key = job_id.partition(":")
    keys = app.client.keys(queue)
    kept = await app.client.ask(Command(["EXISTS", keys.result(key)], bool))
    return not kept and (await app.result(job_id).status()).ended


async def is_executing(result: AsyncResult[int]) -> bool:
    return await result.status() is Status.EXECUTING


async def has_ended(result: AsyncResult[int]) -> bool:
    return (await result.status()).ended


async def raises_expired(result: AsyncResult[int]) -> bool:
    try:
        await result.get(timeout=1)
    except ResultExpired:
        return True
    return False
