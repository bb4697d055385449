"""The client: each call of a batch has its own time, although the batch is sent together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fennelq import App, BrokerUnavailable, FennelqError, clock
from fennelq.broker.keys import queue_keys
from fennelq.broker.trouble import LinkDown, ReplyError
from fennelq.broker.verb import Verb
from fennelq.client import Client, _Given
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


def called(app: App, key: str, seconds_ago: float) -> _Given:
    """A call that was made so many seconds ago."""
    return _Given(as_sent(app.describe("shop:add", job_id=key)), clock.monotonic() - seconds_ago)


async def test_calls_with_time_left_are_sent_again_when_the_time_of_the_oldest_is_over(app: App) -> None:
    batch = [called(app, "old", TIMEOUT + 1), called(app, "new", 0), called(app, "newer", 0)]
    late, *sent = await app.client._send(batch)
    assert sent == [1, 1]
    assert isinstance(late, BrokerUnavailable)
    assert [job.key for job in late.jobs] == ["old"]
    assert await app.client.info("default:old") is None


async def test_calls_whose_time_is_over_are_not_sent_again(app: App) -> None:
    replies = await app.client._send([called(app, "old", TIMEOUT + 1), called(app, "other", TIMEOUT + 1)])
    assert [type(reply) for reply in replies] == [BrokerUnavailable] * 2


async def test_a_refusal_that_does_not_pass_is_final_although_time_is_left(server: Server) -> None:
    with server.client() as limited:
        limited.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "+@all", "resetkeys", "~fq:{shop}*")
    url = server.url.replace("redis://", "redis://poor:pw@")
    async with LocalApp("shop", redis_url=url, enqueue_timeout=TIMEOUT) as app:
        (refused,) = await app.client._send([called(app, "denied", 0)])
    assert isinstance(refused, BrokerUnavailable)
    assert not refused.retriable
    with server.client() as client:
        client.execute_command("ACL", "DELUSER", "poor")


async def test_only_a_job_that_redis_did_not_take_has_time_left() -> None:
    app = LocalApp("shop", redis_url=NOWHERE, enqueue_timeout=TIMEOUT)
    client, lost = Client(app), BrokerUnavailable("is away")
    assert client._has_time_left(called(app, "1", 0), lost)
    assert not client._has_time_left(called(app, "1", TIMEOUT + 1), lost)
    for reply in (1, b"other", BrokerUnavailable("refuses", retriable=False), ValueError()):
        assert not client._has_time_left(called(app, "1", 0), reply)
    await client.close()


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
    async with LocalApp("shop", redis_url=redis_url, enqueue_timeout=0.1) as app:
        await app.send("shop:add", 1)
        attempts = Attempts(app, monkeypatch, ConnectionRefusedError(111, "Connection refused"), None)
        with pytest.raises(BrokerUnavailable) as refused:
            await app.send("shop:add", 2)
    assert attempts.number == 2
    assert refused.value.reason == "cannot be reached: connection refused"
    assert isinstance(refused.value.__cause__, ConnectionRefusedError)
