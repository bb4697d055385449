"""The client: each call of a batch has its own time, although the batch is sent together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fennelq import App, AsyncResult, BrokerUnavailable, clock
from fennelq.client import Given
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
