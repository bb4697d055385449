"""Bad input: refused at `delay()` where that is possible, else dead once and for a reason; the worker goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from fennelq import App, AsyncResult, ConfigurationError, InvalidArguments, Status, Task, TaskFailed
from tests.features.conftest import MakeApp
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.kit.workers import running

HOSTILE = [
    "]] redis.call('FLUSHALL') --",
    "'; return redis.call('FLUSHALL') --",
    "%s%d%n {0} ${x}",
    "\x00\x01\x7f\r\n$3\r\n",
    "fq:{shop/default}:s",
    "ünïcödé 🌿 \u2028 \ufeff",
    '{"ok":1}',
    "\\u0000 \\",
]


class Shop:
    """A task, and hands that reach behind the scenes."""

    def __init__(self, app: App, client: redis.Redis) -> None:
        self.app, self.client = app, client

        @app.task(name="shop:double", retries=0)
        async def double(n: int) -> int:
            return 2 * n

        self.double: Task[[int], int] = double

    async def spoiled(self, **fields: bytes | None) -> AsyncResult[int]:
        """A job whose record was changed after it had been sent; None removes a field."""
        result = await self.double.delay(1)
        name = self.record(result)
        for field, value in fields.items():
            if value is None:
                self.client.hdel(name, field)
            else:
                self.client.hset(name, field, value)
        return result

    def record(self, result: AsyncResult[int]) -> str:
        queue, _, key = result.id.partition(":")
        return self.app.client.keys(queue).record(key)

    async def works(self) -> bool:
        return await self.app.call(self.double.job(21), timeout=30) == 42

    async def is_dead_once(self, result: AsyncResult[int]) -> str:
        """The reason for which it is in the dead-letter queue, where it is once."""
        await aeventually(lambda: has_status(result, Status.DEAD))
        entries = [letter for letter in await self.app.dlq.list() if letter.id == result.id]
        assert len(entries) == 1
        with pytest.raises(TaskFailed):
            await result.get(timeout=30)
        return entries[0].reason


@pytest.fixture
async def shop(make_app: MakeApp, server: Server) -> AsyncIterator[Shop]:
    with server.client() as client:
        yield Shop(make_app(unknown_task_patience=0), client)


ARGUMENTS = {
    "no JSON": b"not json",
    "empty": b"",
    "no call": b"{}",
    "null": b"null",
    "half a call": b"[[1]",
    "more than a call": b"[[1],{}][[1],{}]",
    "another shape": b"[1,2]",
    "a keyword list": b"[[],[]]",
    "another type": b'[["one"],{}]',
    "a missing argument": b"[[],{}]",
    "one argument twice": b'[[1],{"n":1}]',
    "invalid UTF-8": b'[["\xff\xfe"],{}]',
    "an endless nest": b"[[" + b"[" * 100_000,
    "a huge number": b"[[1" + b"0" * 10_000 + b"],{}]",
    "a pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
}


@pytest.mark.parametrize("kind", ARGUMENTS)
async def test_arguments_that_cannot_be_read_make_the_job_dead_as_bad_payload(shop: Shop, kind: str) -> None:
    result = await shop.spoiled(a=ARGUMENTS[kind])
    async with running(shop.app, concurrency=1):
        assert await shop.is_dead_once(result) == "bad_payload"
        assert await shop.works()


@pytest.mark.parametrize(
    "args", [b"[[1,2,3],{}]", b'[[1],{"colour":"red"}]'], ids=["too many", "an unknown one"]
)
async def test_arguments_that_no_worker_knows_make_the_job_dead_as_unknown_argument(
    shop: Shop, args: bytes
) -> None:
    result = await shop.spoiled(a=args)
    async with running(shop.app, concurrency=1):
        assert await shop.is_dead_once(result) == "unknown_argument"
        assert await shop.works()


OPTIONS = {
    "no JSON": b"{",
    "no object": b"[1]",
    "negative retries": b'{"r":-1}',
    "no retry policy": b'{"r":"often"}',
    "half a retry policy": b'{"r":[1,"fixed"]}',
    "a timeout that is not a number": b'{"t":"soon"}',
    "a time to live that is not a number": b'{"s":"long"}',
    "headers that are none": b'{"h":5}',
    "invalid UTF-8": b'{"h":{"a":"\xff"}}',
}


@pytest.mark.parametrize("kind", OPTIONS)
async def test_options_that_cannot_be_read_make_the_job_dead_as_bad_payload(shop: Shop, kind: str) -> None:
    result = await shop.spoiled(o=OPTIONS[kind])
    async with running(shop.app, concurrency=1):
        assert await shop.is_dead_once(result) == "bad_payload"
        assert await shop.works()


@pytest.mark.parametrize("field", ["t", "a"])
async def test_a_record_without_task_or_arguments_is_dead_as_broken(shop: Shop, field: str) -> None:
    result = await shop.spoiled(**{field: None})
    async with running(shop.app, concurrency=1):
        await aeventually(lambda: has_status(result, Status.DEAD))
        assert [letter.reason for letter in await shop.app.dlq.list()] == ["broken"]
        assert await shop.works()


@pytest.mark.parametrize("field", ["n", "w", "c", "E", "m"])
async def test_a_number_that_is_none_does_not_keep_a_job_from_running(shop: Shop, field: str) -> None:
    result = await shop.spoiled(**{field: b"\xff not a number"})
    async with running(shop.app, concurrency=1):
        assert await result.get(timeout=30) == 2


TASKS = {
    "of no worker": b"shop:unknown",
    "of ten kilobytes": b"shop:" + b"x" * 10_000,
    "in invalid UTF-8": b"shop:\xff\xfe",
    "that is empty": b"",
    "that could be imported": b"os:system",
}


@pytest.mark.parametrize("kind", TASKS)
async def test_an_unknown_task_name_makes_the_job_dead_as_unknown_task(shop: Shop, kind: str) -> None:
    result = await shop.spoiled(t=TASKS[kind])
    async with running(shop.app, concurrency=1):
        assert await shop.is_dead_once(result) == "unknown_task"
        assert await shop.works()
    with pytest.raises(TaskFailed, match="unknown task") as failed:
        await result.get(timeout=30)
    assert len(failed.value.message) < 1000


async def test_jobs_whose_records_are_gone_or_of_a_wrong_type_are_dropped_and_the_others_run(
    shop: Shop,
) -> None:
    gone, squatted = await shop.double.map([1, 2])
    others = await shop.double.map(range(10))
    shop.client.delete(shop.record(gone), shop.record(squatted))
    shop.client.set(shop.record(squatted), "not a record", px=60_000)
    async with running(shop.app, concurrency=1):
        for n, result in enumerate(others):
            assert await result.get(timeout=30) == 2 * n
        assert await gone.status() is Status.UNKNOWN
        assert await shop.works()
    shop.client.delete(shop.record(squatted))


async def test_entries_that_no_script_wrote_are_dropped_and_the_others_run(shop: Shop) -> None:
    stream = shop.app.client.keys("default")["s"]
    rubbish: list[dict[Any, Any]] = [
        {"x": "y"},
        {"i": "missing", "n": "1"},
        {"n": "1", "i": "7"},
        {"i": "\xff\xfe", "n": "many"},
        {b"\xff": b"\xff"},
    ]
    for entry in rubbish:
        shop.client.xadd(stream, entry)
    results = await shop.double.map(range(10))
    for entry in rubbish:
        shop.client.xadd(stream, entry)
    async with running(shop.app, concurrency=2):
        for n, result in enumerate(results):
            assert await result.get(timeout=30) == 2 * n
        # While the worker blocks, rubbish is what wakes it.
        for entry in rubbish:
            shop.client.xadd(stream, entry)
            assert await shop.works()
        await aeventually(lambda: shop.client.xlen(stream) == 0)


async def test_a_hundred_bad_jobs_among_good_ones_cost_the_good_ones_nothing(shop: Shop) -> None:
    results = await shop.double.map(range(200))
    for result in results[::2]:
        shop.client.hset(shop.record(result), "a", b"\xff")
    async with running(shop.app, concurrency=8):
        for n in range(1, 200, 2):
            assert await results[n].get(timeout=30) == 2 * n
        await asyncio.gather(*(shop.is_dead_once(result) for result in results[:20:2]))
        assert await shop.app.dlq.count() == 100


# What can be known at the door


@pytest.mark.parametrize("name", ["a{b}", "{shop/mail}", "a\nb", "a b", "a:b", "", "x" * 129, "ü"])
async def test_a_queue_name_that_could_not_be_a_key_is_refused(shop: Shop, name: str) -> None:
    with pytest.raises(ConfigurationError, match="queue"):
        shop.double.options(queue=name)
    with pytest.raises(ConfigurationError, match="queue"):
        await shop.app.send("other:task", queue=name)
    with pytest.raises(ConfigurationError, match="name"):
        App("shop", default_queue=name)


@pytest.mark.parametrize("name", ["a{b}", "a/b", "a:b", "", "a b", "a\n"])
def test_an_app_name_that_could_not_be_a_key_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        App(name)
    with pytest.raises(ConfigurationError, match="name"):
        App("shop", namespace=name or "{}")


@pytest.mark.parametrize("option", ["key", "job_id"])
async def test_a_key_that_cannot_be_written_is_refused_and_fails_no_other_job(
    shop: Shop, option: str
) -> None:
    bad = ["\ud83c", "a b", "{x}", "a\nb", "", "x" * 300]
    for text in bad:
        with pytest.raises(ConfigurationError):
            shop.double.options(**{option: text})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async with running(shop.app):
        assert await shop.works()


async def test_a_header_that_cannot_be_written_is_refused(shop: Shop) -> None:
    for headers in ({"a": "\ud83c"}, {"\ud83c": "a"}):
        with pytest.raises(ConfigurationError, match="header"):
            shop.double.options(headers=headers)


async def test_text_that_cannot_be_written_is_refused_and_names_the_parameter(app: App) -> None:
    @app.task
    async def greet(name: str) -> None: ...

    with pytest.raises(InvalidArguments, match="name"):
        await greet.delay("half a \ud83c letter")


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
async def test_hostile_text_is_only_text(app: App, text: str) -> None:
    """As an argument, a header, a result, the message of an error: it comes back as it was."""

    @app.task(retries=0)
    async def repeat(words: list[str], fail: bool = False) -> dict[str, str]:
        if fail:
            raise ValueError(words[0])
        return {word: word for word in words}

    async with running(app):
        task = repeat.options(headers={"text": text})
        result = await task.delay([text])
        assert await result.get(timeout=30) == {text: text}
        info = await result.info()
        assert info is not None
        assert info.headers == {"text": text}
        with pytest.raises(TaskFailed) as failed:
            await (await task.delay([text], fail=True)).get(timeout=30)
        assert failed.value.message == text


async def test_hostile_names_are_only_names(app: App) -> None:
    """Task names and keys take nearly everything; no script may read more than a name in them."""

    @app.task(name="shop:]]redis.call('FLUSHALL')--%s")
    async def double(n: int) -> int:
        return 2 * n

    async with running(app):
        for key in ("]]..redis.call('FLUSHALL')--", "%s%d%1", "ü🌿", "a:b:c", "=", "~", "*?[a]", "\\"):
            first = await double.options(key=key).delay(21)
            assert await first.get(timeout=30) == 42
            again = await double.options(key=key).delay(21)
            assert (again, again.deduplicated) == (first, True)


async def has_status(result: AsyncResult[Any], status: Status) -> bool:
    return await result.status() is status
