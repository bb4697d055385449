"""What further calls with the same key do: return, raise or replace; and how long a job holds its key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fennelq import (
    App,
    AsyncTask,
    DuplicateJob,
    EnqueueFailed,
    JobCancelled,
    QueuePaused,
    RetryPolicy,
    Status,
    dedupe,
)
from fennelq.testing import Summary, Testing
from tests.features.conftest import MakeApp
from tests.kit.proxy import Proxy
from tests.kit.waiting import aeventually
from tests.kit.workers import running

Index = AsyncTask[[int, str], str]


def indexing(app: App, **options: Any) -> tuple[Index, list[str]]:
    """A task with the parameters `user_id` and `text`, which notes the texts with which it has run."""
    ran: list[str] = []

    async def index(user_id: int, text: str) -> str:
        ran.append(text)
        return text

    options = {"key": dedupe.arguments("user_id"), **options}
    return app.task(name="shop:index", **options)(index), ran


# The bars


async def test_of_200_concurrent_callers_of_one_key_one_job_runs(app: App) -> None:
    """L13. All get its handle."""
    all_sent = asyncio.Event()
    runs = list[int]()

    @app.task(name="shop:count", key="all", dedupe="until_done")
    async def count(n: int) -> int:
        runs.append(n)
        await all_sent.wait()
        return n

    async with running(app), running(app):
        results = await asyncio.gather(*(count.delay(n) for n in range(200)))
        all_sent.set()
        values = await asyncio.gather(*(result.get(timeout=30) for result in results))
    assert len(set(results)) == 1
    assert [result.deduplicated for result in results].count(False) == 1
    assert (len(runs), {*values}) == (1, {*runs})


async def test_of_200_concurrent_callers_that_replace_each_other_the_last_arguments_run(app: App) -> None:
    task, ran = indexing(app, dedupe="until_start", on_duplicate="replace")
    results = await asyncio.gather(*(task.delay(7, str(n)) for n in range(200)))
    async with running(app):
        assert {await result.get(timeout=30) for result in results} == {"199"}
    assert (len(set(results)), ran) == (1, ["199"])


async def test_ten_calls_within_the_wait_are_one_run_with_the_last_arguments(app: App, t: Testing) -> None:
    task, ran = indexing(app, dedupe="debounce", wait=50, max_wait=500)
    results = [await task.delay(7, "0")]
    for n in range(1, 10):
        t.tick(10)
        assert await t.run_until_idle() == Summary()
        results.append(await task.delay(7, str(n)))
    t.tick(40)
    assert await t.run_until_idle() == Summary()
    t.tick(10)
    assert await t.run_until_idle() == Summary(succeeded=1)
    assert ran == ["9"]
    assert {await result.get(timeout=0) for result in results} == {"9"}
    assert [result.deduplicated for result in results] == [False, *[True] * 9]


async def test_calls_that_never_stop_are_run_within_max_wait(app: App, t: Testing) -> None:
    task, ran = indexing(app, dedupe="debounce", wait=10, max_wait=30)
    for n in range(13):
        await task.delay(7, str(n))
        t.tick(5)
        await t.run_until_idle()
    # The first job is due after 30 s, the next one 30 s after the call that made it.
    assert ran == ["5", "11"]


# The modes


async def test_a_call_during_the_run_of_the_latest_makes_one_more_run_with_the_last_arguments(
    app: App,
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    ran = list[str]()

    @app.task(name="shop:render", dedupe="latest", key=dedupe.arguments("page"))
    async def render(page: int, text: str) -> str:
        ran.append(text)
        begun.set()
        await may_end.wait()
        return text

    async with running(app), running(app):
        first = await render.delay(1, "a")
        await asyncio.wait_for(begun.wait(), 20)
        later = [await render.delay(1, text) for text in "bcd"]
        other = await render.delay(2, "x")
        await aeventually(lambda: "x" in ran)
        info = await later[0].info()
        assert info is not None
        assert await app.limits.list() == []
        assert f"the end of the earlier job of its key, next in its line; held by {first.id}" in str(
            info.waiting_because
        )
        may_end.set()
        assert [await one.get(timeout=30) for one in (first, *later, other)] == ["a", "d", "d", "d", "x"]
    assert sorted(ran) == ["a", "d", "x"]
    assert [one.deduplicated for one in (first, *later)] == [False, False, True, True]


async def test_a_failed_run_is_not_repeated_when_a_newer_call_waits(app: App, t: Testing) -> None:
    calls = list[str]()

    @app.task(name="shop:render", dedupe="latest", key="one", retry=RetryPolicy.fixed(3, delay=60))
    async def render(text: str) -> str:
        calls.append(text)
        if text == "a":
            await render.delay("b")
            raise ConnectionError
        return text

    first = await render.delay("a")
    done = await t.run_until_idle()
    assert (done.succeeded, done.cancelled, done.retried) == (1, 1, 0)
    t.tick(3600)
    assert await t.run_until_idle() == Summary()
    assert calls == ["a", "b"]
    with pytest.raises(JobCancelled, match=r"cancelled \(superseded\)"):
        await first.get(timeout=0)


async def test_until_start_lets_in_a_new_job_as_soon_as_the_first_one_runs(app: App) -> None:
    task, ran = indexing(app, dedupe="until_start")
    may_end = asyncio.Event()

    @app.task(name="shop:hold", dedupe="until_start", key="one")
    async def hold() -> None:
        ran.append("hold")
        await may_end.wait()

    async with running(app):
        first = await hold.delay()
        await aeventually(lambda: ran == ["hold"])
        second = await hold.delay()
        assert second != first
        may_end.set()
        await second.get(timeout=30)
    assert await (await task.delay(7, "a")).status() is Status.SENT
    assert (await task.delay(7, "b")).deduplicated


async def test_throttle_runs_the_first_call_of_a_window(app: App, t: Testing) -> None:
    task, ran = indexing(app, dedupe="throttle", ttl=60)
    for n in range(10):
        await task.delay(7, str(n))
        await t.run_until_idle()
        t.tick(20)
    assert ran == ["0", "3", "6", "9"]


async def test_a_dead_job_is_not_replayed_while_another_job_holds_its_key(app: App, t: Testing) -> None:
    @app.task(name="shop:break", dedupe="until_done", key="one", retries=0)
    async def break_down() -> None:
        raise ValueError("no")

    first = await break_down.delay()
    await t.run_until_idle()
    second = await break_down.delay()
    assert second != first
    answer = await app.jobs.retry(first.id)
    assert (answer.done, answer.text) == (False, "its idempotency key is taken by another job")
    await second.cancel()
    assert (await app.jobs.retry(first.id)).done


# Duplicates


async def test_a_duplicate_raises_an_error_that_names_the_job(app: App) -> None:
    task, _ = indexing(app, dedupe="until_done", on_duplicate="raise")
    first = await task.delay(7, "a")
    with pytest.raises(DuplicateJob, match=f"holds the key 'user_id=7', its job is {first.id}") as raised:
        await task.delay(7, "b")
    error = raised.value
    assert (error.job_id, error.task, error.key) == (first.id, "shop:index", "user_id=7")
    with pytest.raises(EnqueueFailed) as failed:
        await app.enqueue([task.job(8, "a"), task.job(7, "c"), task.job(8, "b")])
    assert sorted(failed.value.failures) == [1, 2]
    duplicate = failed.value.failures[2]
    assert isinstance(duplicate, DuplicateJob)
    assert duplicate.job_id == failed.value.handles[0].id


async def test_a_duplicate_of_a_plain_key_and_of_an_id_may_raise_as_well(app: App) -> None:
    task, _ = indexing(app)
    plain = task.options(key="k", on_duplicate="raise")
    await plain.delay(7, "a")
    with pytest.raises(DuplicateJob):
        await plain.delay(8, "b")
    named = task.options(key="other", job_id="mine", on_duplicate="raise")
    await named.delay(7, "a")
    with pytest.raises(DuplicateJob, match="its job is default:mine"):
        await named.delay(7, "a")


async def test_code_without_an_event_loop_has_duplicates_too(app: App) -> None:
    task, _ = indexing(app, dedupe="until_start", on_duplicate="replace")

    def send() -> None:
        first = task.sync.delay(7, "a")
        second = task.sync.delay(7, "b")
        assert (second.id, second.deduplicated) == (first.id, True)
        info = first.info()
        assert info is not None
        assert info.arguments == b'[[7,"b"],{}]'
        with pytest.raises(DuplicateJob):
            task.options(on_duplicate="raise").sync.delay(7, "c")

    await asyncio.to_thread(send)


async def test_while_callers_may_send_nothing_they_still_get_and_replace_what_waits(app: App) -> None:
    task, _ = indexing(app, dedupe="until_start", on_duplicate="replace")
    first = await task.delay(7, "a")
    await app.queue("default").pause(only="enqueue")
    assert await task.delay(7, "b") == first
    with pytest.raises(QueuePaused):
        await task.delay(8, "a")
    await app.queue("default").resume()


async def test_a_call_that_replaces_and_loses_its_reply_replaces_once(
    proxy: Proxy, make_app: MakeApp
) -> None:
    app = make_app(redis_url=proxy.url)
    task, ran = indexing(app, dedupe="until_start", on_duplicate="replace")
    first = await task.delay(7, "a")
    proxy.drop_reply(1, command="EVALSHA", cut=True)
    second = await task.delay(7, "b")
    assert (second, second.deduplicated) == (first, True)
    async with running(app):
        assert await second.get(timeout=30) == "b"
    assert (ran, proxy.counters.dropped) == (["b"], 1)


# What shows it


async def test_a_job_shows_its_key_its_mode_and_when_it_is_due_at_the_latest(app: App, t: Testing) -> None:
    task, _ = indexing(app, dedupe="debounce", wait=60, max_wait=600)
    info = await (await task.delay(7, "a")).info()
    assert info is not None
    assert (info.key, info.dedupe) == ("user_id=7", "debounce")
    assert info.enqueued_at is not None
    assert info.due_at is not None
    assert info.due_by is not None
    assert (info.due_by - info.due_at).total_seconds() == 540
    modes: list[tuple[dict[str, Any], str | None]] = [
        ({"dedupe": "until_start"}, "until_start"),
        ({"dedupe": "until_done"}, "until_done"),
        ({"dedupe": "throttle", "ttl": 60}, "throttle"),
        ({"dedupe": "latest"}, "latest"),
        ({"key": "plain"}, None),
    ]
    for number, (options, mode) in enumerate(modes):
        plain, _ = indexing(app)
        info = await (await plain.options(**options).delay(number, "a")).info()
        assert info is not None
        assert (info.dedupe, info.due_by) == (mode, None)


async def test_a_test_sees_the_arguments_of_the_last_call(app: App, t: Testing) -> None:
    task, _ = indexing(app, dedupe="debounce", wait=60)
    await task.options(headers={"by": "anna"}).delay(7, "a")
    await task.delay(7, "b")
    await task.delay(8, "c")
    t.assert_enqueued(task, 7, "b", delay=60, key="user_id=7")
    assert [(one.args, one.headers) for one in t.sent(task)] == [((7, "b"), {}), ((8, "c"), {})]


async def test_an_eager_job_does_not_wait_for_further_calls(app: App, t: Testing) -> None:
    task, ran = indexing(app, dedupe="debounce", wait=60)
    with t.eager():
        await task.delay(7, "a")
        await task.delay(7, "b")
    assert ran == ["a", "b"]
