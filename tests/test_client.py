"""The client: each call of a batch has its own time, although the batch is sent together."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fennelq import App, BrokerUnavailable, clock
from fennelq.client import Client, _Given
from tests.kit.apps import LocalApp
from tests.kit.jobs import as_sent
from tests.kit.server import Server

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
