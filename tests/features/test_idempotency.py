"""One job however often it is asked for: idempotency keys, and job ids given by the caller."""

from __future__ import annotations

import asyncio

import pytest

from fennelq import App, AsyncResult, DuplicateJob, Status, Task, TaskFailed
from tests.features.conftest import MakeApp
from tests.kit.ageing import age
from tests.kit.jobs import as_sent
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

KEY = "welcome:42"


class Desk:
    """A task that waits for permission to end, and counts its runs."""

    def __init__(self, app: App) -> None:
        self.may_end = asyncio.Event()
        self.runs = 0

        @app.task(retries=0, name="shop:welcome")
        async def welcome(user_id: int) -> int:
            self.runs += 1
            await self.may_end.wait()
            if user_id < 0:
                raise ValueError("no such number")
            return self.runs

        self.welcome: Task[[int], int] = welcome

    async def ask(self, user_id: int = 42) -> AsyncResult[int]:
        return await self.welcome.options(key=KEY).delay(user_id)


@pytest.fixture
async def desk(app: App) -> Desk:
    return Desk(app)


async def test_a_job_shows_its_key_as_it_was_given_and_is_found_by_it(app: App, desk: Desk) -> None:
    """The name of a task contains a colon, and so may a key."""
    first = await desk.ask()
    await desk.welcome.options(key="42").delay(42)
    info = await first.info()
    assert info is not None
    assert info.key == KEY
    assert [job.id async for job in app.jobs.find(f"key:{KEY}")] == [first.id]


# The five moments of a key


async def test_the_same_key_while_the_first_job_is_queued_gets_its_handle(app: App, desk: Desk) -> None:
    first = await desk.ask()
    again = await desk.ask()
    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert again == first
    desk.may_end.set()
    async with running(app):
        assert await again.get(timeout=30) == await first.get(timeout=30) == 1
    assert desk.runs == 1


async def test_the_same_key_while_the_first_job_runs_gets_its_handle(app: App, desk: Desk) -> None:
    async with running(app):
        first = await desk.ask()
        await aeventually(lambda: desk.runs == 1)
        again = await desk.ask()
        assert again == first
        assert again.deduplicated
        desk.may_end.set()
        assert await again.get(timeout=30) == 1
    assert desk.runs == 1


async def test_the_same_key_after_the_first_job_is_done_gets_its_handle_and_its_result(
    app: App, desk: Desk
) -> None:
    desk.may_end.set()
    async with running(app):
        first = await desk.ask()
        await first.get(timeout=30)
        again = await desk.ask()
        assert again == first
        assert again.deduplicated
        assert await again.get(timeout=30) == 1
    assert desk.runs == 1


async def test_the_same_key_while_the_first_job_is_dead_gets_the_dead_ones_handle(
    app: App, desk: Desk
) -> None:
    desk.may_end.set()
    async with running(app):
        first = await desk.ask(-1)
        with pytest.raises(TaskFailed):
            await first.get(timeout=30)
        again = await desk.ask(-1)
        assert again == first
        assert again.deduplicated
        with pytest.raises(TaskFailed, match="no such number"):
            await again.get(timeout=30)
    assert desk.runs == 1


async def test_the_same_key_after_the_first_jobs_record_is_gone_makes_another_job(
    make_app: MakeApp, server: Server
) -> None:
    app = make_app(record_ttl=60, result_ttl=60)
    desk = Desk(app)
    desk.may_end.set()
    async with running(app):
        first = await desk.ask()
        await first.get(timeout=30)
        age(server, 600)
        await aeventually(lambda: has_status(first, Status.UNKNOWN))
        again = await desk.ask()
        assert again != first
        assert not again.deduplicated
        assert await again.get(timeout=30) == 2


async def test_a_key_with_a_ttl_of_its_own_is_free_again_after_that(app: App, desk: Desk) -> None:
    task = desk.welcome.options(key=KEY, ttl=0.1)
    first = await task.delay(42)
    assert (await task.delay(42)).deduplicated
    second = await aeventually(lambda: sent_anew(task))
    assert second != first
    desk.may_end.set()
    async with running(app):
        assert {await first.get(timeout=30), await second.get(timeout=30)} == {1, 2}


async def test_a_ttl_without_a_key_leaves_the_job_a_plain_one(desk: Desk) -> None:
    assert as_sent(desk.welcome.options(ttl=5).job(42)).carried == {}
    assert as_sent(desk.welcome.options(key=KEY, ttl=5).job(42)).carried["window_ms"] == 5000


async def test_a_key_with_a_ttl_of_its_own_is_held_after_the_end_of_the_job(make_app: MakeApp) -> None:
    app = make_app(record_ttl=600)
    desk = Desk(app)
    desk.may_end.set()
    task = desk.welcome.options(key=KEY, ttl=300)
    async with running(app):
        first = await task.delay(42)
        await first.get(timeout=30)
        again = await task.delay(42)
    assert again == first
    assert again.deduplicated


# More about keys


async def test_a_key_belongs_to_one_task(app: App, desk: Desk) -> None:
    @app.task(name="shop:goodbye")
    async def goodbye(user_id: int) -> None: ...

    first = await desk.ask()
    other = await goodbye.options(key=KEY).delay(42)
    assert other != first
    assert not other.deduplicated


async def test_of_a_hundred_simultaneous_calls_with_one_key_one_job_is_made(app: App, desk: Desk) -> None:
    results = await asyncio.gather(*(desk.ask() for _ in range(100)))
    assert len(set(results)) == 1
    assert [result.deduplicated for result in results].count(False) == 1
    desk.may_end.set()
    async with running(app):
        await results[99].get(timeout=30)
    assert desk.runs == 1


async def test_a_cancelled_job_frees_its_key_with_its_record_only(app: App, desk: Desk) -> None:
    first = await desk.ask()
    assert await first.cancel()
    again = await desk.ask()
    assert again == first
    assert again.deduplicated


async def test_a_delayed_job_holds_its_key_while_it_waits(app: App, desk: Desk) -> None:
    first = await desk.welcome.options(key=KEY, delay=500).delay(42)
    again = await desk.ask()
    assert again == first
    assert await again.status() is Status.SCHEDULED
    assert await first.cancel()


async def test_ones_own_repeated_call_is_not_a_duplicate(proxy: Proxy, make_app: MakeApp) -> None:
    """The reply to the script is lost, so `delay()` sends it again and meets its own job."""
    app = make_app(redis_url=proxy.url)
    desk = Desk(app)
    await desk.welcome.delay(0)
    proxy.drop_reply(1, command="EVALSHA", cut=True)
    first = await desk.ask()
    assert not first.deduplicated
    assert (await desk.ask()).deduplicated
    assert proxy.counters.dropped == 1


# Ids given by the caller


async def test_a_job_id_given_by_the_caller_is_the_jobs_key(app: App, desk: Desk) -> None:
    result = await desk.welcome.options(job_id="welcome.42").delay(42)
    assert result.id == "default:welcome.42"
    assert not result.deduplicated


@pytest.mark.parametrize("moment", ["queued", "done", "dead"])
async def test_the_same_job_id_and_call_gets_the_first_jobs_handle(app: App, desk: Desk, moment: str) -> None:
    user = -1 if moment == "dead" else 42
    task = desk.welcome.options(job_id="welcome.42")
    first = await task.delay(user)
    if moment != "queued":
        desk.may_end.set()
        async with running(app):
            await aeventually(lambda: has_status(first, Status.DEAD if moment == "dead" else Status.SUCCESS))
    again = await task.delay(user)
    assert again == first
    assert again.deduplicated


@pytest.mark.parametrize("moment", ["queued", "done"])
async def test_the_same_job_id_with_other_arguments_is_refused(app: App, desk: Desk, moment: str) -> None:
    task = desk.welcome.options(job_id="welcome.42")
    first = await task.delay(42)
    if moment == "done":
        desk.may_end.set()
        async with running(app):
            await first.get(timeout=30)
    with pytest.raises(DuplicateJob, match=r"default:welcome\.42") as refused:
        await task.delay(43)
    assert refused.value.job_id == first.id


async def test_the_same_job_id_with_another_task_is_refused(app: App, desk: Desk) -> None:
    @app.task(name="shop:goodbye")
    async def goodbye(user_id: int) -> None: ...

    await desk.welcome.options(job_id="welcome.42").delay(42)
    with pytest.raises(DuplicateJob):
        await goodbye.options(job_id="welcome.42").delay(42)


async def test_the_same_job_id_in_another_queue_is_another_job(app: App, desk: Desk) -> None:
    one = await desk.welcome.options(job_id="welcome.42").delay(42)
    other = await desk.welcome.options(job_id="welcome.42", queue="mail").delay(42)
    assert one != other
    assert not other.deduplicated


async def test_ones_own_repeated_call_with_a_job_id_is_not_a_duplicate(
    proxy: Proxy, make_app: MakeApp
) -> None:
    app = make_app(redis_url=proxy.url)
    desk = Desk(app)
    await desk.welcome.delay(0)
    proxy.drop_reply(1, command="EVALSHA", cut=True)
    result = await desk.welcome.options(job_id="welcome.42").delay(42)
    assert not result.deduplicated
    assert proxy.counters.dropped == 1


async def has_status(result: AsyncResult[int], status: Status) -> bool:
    return await result.status() is status


async def sent_anew(task: Task[[int], int]) -> AsyncResult[int] | None:
    result = await task.delay(42)
    return None if result.deduplicated else result
