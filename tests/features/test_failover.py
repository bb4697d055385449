"""A failover behind one address: the demoted server goes on as a replica, and no connection to it is cut.

A name, a virtual address or a proxy leads new connections to the new primary. Connections that exist are healthy and
lead to a server that takes no job any more, so each of them has to be given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from fennelq import App, gather
from tests.features.conftest import IMPATIENT
from tests.kit.apps import LocalApp
from tests.kit.proxy import Proxy
from tests.kit.server import Kind, Server
from tests.kit.waiting import aeventually, eventually
from tests.kit.workers import running

pytestmark = pytest.mark.both_servers


class Address:
    """Two servers behind a proxy, which leads to the first until `fail_over`."""

    def __init__(self, first: Server, second: Server, proxy: Proxy) -> None:
        self.first, self.second, self.proxy = first, second, proxy

    def fail_over(self) -> None:
        """The second has everything that the first had and takes its place; the first follows it."""
        with self.first.client() as old, self.second.client() as new:
            new.execute_command("REPLICAOF", "127.0.0.1", self.first.port)
            eventually(lambda: new.info("replication")["master_link_status"] == "up")
            old.execute_command("WAIT", 1, 5000)
            new.execute_command("REPLICAOF", "NO", "ONE")
            self.proxy.lead_to(self.second.url)
            old.execute_command("REPLICAOF", "127.0.0.1", self.second.port)

    def hears_bells(self) -> bool:
        """Whether an executor listens on the first server to what wakes it."""
        with self.first.client() as client:
            channels = cast("list[bytes]", client.execute_command("PUBSUB", "SHARDCHANNELS", "*:bell:*"))
            return len(channels) > 0

    def on_the_first(self) -> list[str]:
        """What the connections to the first server did last, without those of replication."""
        with self.first.client() as client:
            me = client.client_id()
            there = [c for c in client.client_list() if c["flags"] not in ("S", "M") and int(c["id"]) != me]
        return [c["cmd"] for c in there]


@pytest.fixture
async def address(server_kind: Kind) -> AsyncIterator[Address]:
    # A full synchronisation waits for 5 s by default, lest more replicas come.
    quick = {"repl-diskless-sync-delay": "0"}
    with (
        Server(server_kind, config=quick) as first,
        Server(server_kind, config=quick) as second,
        Proxy(first.url) as proxy,
    ):
        yield Address(first, second, proxy)


async def test_workers_senders_and_waiters_move_to_the_new_primary(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("waiting", "sync"):
        monkeypatch.setattr(f"fennelq.{module}.waiting.RECHECK", 0.5)
    app = LocalApp("shop", redis_url=address.proxy.url, enqueue_timeout=20, lease=4, **IMPATIENT)
    gate = asyncio.Event()

    @app.task(name="shop:double", retries=0)
    async def double(n: int) -> int:
        if n < 100:
            await gate.wait()
        return 2 * n

    with ThreadPoolExecutor(2) as threads:
        async with running(app, concurrency=32):
            held = await double.map(range(6))
            waiters = [asyncio.create_task(result.get(timeout=60)) for result in held]
            blocking = [threads.submit(app_result_get, app, result.id) for result in held[:2]]
            await aeventually(lambda: address.on_the_first().count("subscribe") == 2)
            await aeventually(address.hears_bells)
            await asyncio.to_thread(address.fail_over)
            fresh = await double.map(range(100, 120))
            assert await gather(*fresh, timeout=30) == [2 * n for n in range(100, 120)]
            aside = await asyncio.to_thread(lambda: double.sync.delay(500).get(timeout=30))
            assert aside == 1000
            await aeventually(lambda: not address.on_the_first())
            gate.set()
            async with asyncio.timeout(30):
                assert await asyncio.gather(*waiters) == [2 * n for n in range(6)]
                assert [await asyncio.wrap_future(waiter) for waiter in blocking] == [0, 2]
    await app.close()
    app.blocking.close()


def app_result_get(app: App, job_id: str) -> int:
    """As a thread waits for it."""
    from fennelq.sync.sync import BlockingResult

    return BlockingResult[int](app, job_id, None).get(timeout=60)
