"""The client: each call of a batch has its own time, although the batch is sent together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fennelq import App, AsyncResult, BrokerUnavailable, FennelqError, clock
from fennelq.broker.keys import queue_keys
from fennelq.broker.trouble import LinkDown, ReplyError
from fennelq.broker.verb import Verb
from fennelq.client import Given
from tests.kit.apps import LocalApp
from tests.kit.jobs import as_sent
from tests.kit.server import Server

KEYS = queue_keys("shop", "default")
NOWHERE = "redis://127.0.0.1:1/0"
TIMEOUT = 30.0


@pytest.fixture
async def app(redis_url: str) -> AsyncIterator[App]:
    """An app whose calls have half a minute each."""
    async with LocalApp("shop", redis_url=redis_url, enqueue_timeout=TIMEOUT) as app:
        yield app


class Ago:
    """The clock of the client, which may be late."""

    seconds = 0.0

    def monotonic(self) -> float:
        return clock.monotonic() - self.seconds


@pytest.fixture
def ago(monkeypatch: pytest.MonkeyPatch) -> Ago:
    ago = Ago()
    monkeypatch.setattr("fennelq.client.clock", ago)
    return ago


async def replies(app: App, ago: Ago, **calls: float) -> list[AsyncResult[Any] | BaseException]:
    """The replies to calls that are sent in one batch, each of which was made so many seconds ago."""

    async def call(key: str, seconds: float) -> AsyncResult[Any]:
        ago.seconds = seconds
        return await app.client.send(as_sent(app.describe("shop:add", job_id=key)))

    calling = [asyncio.create_task(call(key, seconds)) for key, seconds in calls.items()]
    asyncio.get_running_loop().call_soon(setattr, ago, "seconds", 0.0)
    return await asyncio.gather(*calling, return_exceptions=True)


async def test_calls_with_time_left_are_sent_again_when_the_time_of_the_oldest_is_over(
    app: App, ago: Ago
) -> None:
    late, *sent = await replies(app, ago, old=TIMEOUT + 1, new=0, newer=0)
    assert [result.id for result in sent if isinstance(result, AsyncResult)] == [
        "default:new",
        "default:newer",
    ]
    assert not any(result.deduplicated for result in sent if isinstance(result, AsyncResult))
    assert isinstance(late, BrokerUnavailable)
    assert [job.key for job in late.jobs] == ["old"]
    assert await app.client.info("default:old") is None


async def test_calls_whose_time_is_over_are_not_sent_again(app: App, ago: Ago) -> None:
    late = await replies(app, ago, old=TIMEOUT + 1, other=TIMEOUT + 1)
    assert [type(reply) for reply in late] == [BrokerUnavailable] * 2


async def test_a_refusal_that_does_not_pass_is_final_although_time_is_left(server: Server, ago: Ago) -> None:
    with server.client() as limited:
        limited.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "+@all", "resetkeys", "~fq:{shop}*")
    url = server.url.replace("redis://", "redis://poor:pw@")
    async with LocalApp("shop", redis_url=url, enqueue_timeout=TIMEOUT) as app:
        (refused,) = await replies(app, ago, denied=0)
    assert isinstance(refused, BrokerUnavailable)
    assert not refused.retriable
    with server.client() as client:
        client.execute_command("ACL", "DELUSER", "poor")


def test_only_a_job_that_redis_did_not_take_has_time_left() -> None:
    job = as_sent(LocalApp("shop", redis_url=NOWHERE).describe("shop:add"))
    now, lost = clock.monotonic(), BrokerUnavailable("is away")
    assert Given(job, now).has_time_left(lost, TIMEOUT)
    assert not Given(job, now - TIMEOUT - 1).has_time_left(lost, TIMEOUT)
    for reply in (1, b"other", BrokerUnavailable("refuses", retriable=False), ValueError()):
        assert not Given(job, now).has_time_left(reply, TIMEOUT)


# A single job, which is sent without a conversation


class Attempts:
    """Counts the calls of `enqueue`. The first ones fail with these errors; None gets no reply."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch, *errors: Exception | None) -> None:
        self.number = 0
        self._errors, self._run = list(errors), app.client.broker.run
        monkeypatch.setattr(app.client.broker, "run", self.run)

    async def run(self, verb: Verb[Any], within: float = 5.0) -> Any:
        self.number += verb.name == "enqueue"
        if self._errors and verb.name == "enqueue":
            if (error := self._errors.pop(0)) is not None:
                raise error
            async with asyncio.timeout(within):
                await asyncio.Event().wait()
        return await self._run(verb, within)


@pytest.fixture
def poor(server: Server) -> Iterator[str]:
    """The URL of a user who may use the keys of the app, until a test takes that away."""
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "+@all", "~fq:{shop*", "&*")
        yield server.url.replace("redis://", "redis://poor:pw@")
        admin.execute_command("ACL", "DELUSER", "poor")


async def test_a_job_that_this_user_may_not_send_is_sent_once(
    server: Server, poor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LocalApp("shop", redis_url=poor, enqueue_timeout=TIMEOUT) as app:
        await app.send("shop:add", 1)
        with server.client() as admin:
            admin.execute_command("ACL", "SETUSER", "poor", "resetkeys")
        attempts, began = Attempts(app, monkeypatch), time.monotonic()
        with pytest.raises(BrokerUnavailable) as refused:
            await app.send("shop:add", 2, job_id="second")
    assert attempts.number == 1
    assert time.monotonic() - began < TIMEOUT / 2
    assert refused.value.reason.startswith("does not permit a command or a key that fennelq needs (NOPERM")
    assert not refused.value.retriable
    assert isinstance(refused.value.__cause__, ReplyError)
    assert [job.id for job in refused.value.jobs] == ["default:second"]


@pytest.mark.audit(skip="the test takes a stream away")
async def test_a_job_that_a_damaged_queue_refuses_is_sent_once(
    app: App, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.send("shop:add", 1)
    with server.client() as client:
        client.delete(KEYS["s"])
        client.set(KEYS["s"], "what?")
        attempts = Attempts(app, monkeypatch)
        with pytest.raises(FennelqError, match="Redis refused job default:second: WRONGTYPE"):
            await app.send("shop:add", 2, job_id="second")
        client.delete(KEYS["s"])
    assert attempts.number == 1


async def test_an_error_that_passes_is_followed_by_another_attempt(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.send("shop:add", 1)
    attempts = Attempts(app, monkeypatch, LinkDown("cut"), ReplyError("OOM command not allowed"))
    result = await app.send("shop:add", 2)
    assert attempts.number == 3
    assert not result.deduplicated
    assert await app.client.info(result.id) is not None


async def test_a_server_without_memory_is_named_as_the_cause(server: Server, redis_url: str) -> None:
    async with LocalApp("shop", redis_url=redis_url, enqueue_timeout=0.3) as app:
        await app.send("shop:add", 1)
        with server.configured(maxmemory="1"), pytest.raises(BrokerUnavailable) as refused:
            await app.send("shop:add", 2)
    assert refused.value.reason == "has no memory left for writes (OOM)"
    assert refused.value.retriable


async def test_the_error_of_the_first_attempt_is_the_cause_when_the_next_gets_no_reply(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LocalApp("shop", redis_url=redis_url, enqueue_timeout=1) as app:
        await app.send("shop:add", 1)
        attempts = Attempts(app, monkeypatch, ConnectionRefusedError(111, "Connection refused"), None)
        with pytest.raises(BrokerUnavailable) as refused:
            await app.send("shop:add", 2)
    assert attempts.number == 2
    assert refused.value.reason == "cannot be reached: connection refused"
    assert isinstance(refused.value.__cause__, ConnectionRefusedError)
