"""A server that becomes a replica keeps its connections open: every kind of link leaves it by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.blocking_link import BlockingLink
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.link import Link, LinkDown
from fennelq.broker.trouble import ReplyError, Trouble, classify
from fennelq.broker.verb import Command, as_is
from tests.broker.desk import APP, LIFETIMES, QUEUE, READ, a_job
from tests.kit.proxy import Proxy
from tests.kit.server import Kind, Server
from tests.kit.waiting import aeventually, eventually

pytestmark = pytest.mark.both_servers

PATIENCE = 20.0
WHO = Command(["CLIENT", "ID"], int)
WRITE = ["SET", "key", "value"]


class Pair:
    """A primary and its successor behind one address, which leads to the primary until `fail_over`."""

    def __init__(self, first: Server, second: Server, proxy: Proxy) -> None:
        self.first, self.second, self.proxy = first, second, proxy
        self.address = address_of(proxy.url)

    def demote(self) -> None:
        """The first is a replica from now on. Its connections stay open, and new ones still lead to it."""
        with self.first.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", self.second.port)

    def fail_over(self) -> None:
        """As `demote`, and new connections lead to the second."""
        self.proxy.lead_to(self.second.url)
        self.demote()

    def others_on(self, server: Server) -> int:
        """Connections of links under test."""
        with server.client() as client:
            mine = client.client_id()
            kinds = [c for c in client.client_list() if "S" not in c["flags"] and "M" not in c["flags"]]
            return len([c for c in kinds if int(c["id"]) != mine])


@pytest.fixture
def pair(server_kind: Kind) -> Iterator[Pair]:
    with Server(server_kind) as first, Server(server_kind) as second, Proxy(first.url) as proxy:
        yield Pair(first, second, proxy)


async def test_an_answer_of_a_replica_ends_the_connection_and_the_next_call_finds_the_primary(
    pair: Pair,
) -> None:
    link = Link(pair.address)
    await link.call(WRITE, PATIENCE)
    pair.fail_over()
    with pytest.raises(ReplyError, match="READONLY"):
        await link.call(WRITE, PATIENCE)
    assert not link.connected
    assert await link.call(WRITE, PATIENCE) == b"OK"
    assert pair.others_on(pair.first) == 0
    link.close()


async def test_calls_under_way_behind_the_reply_of_a_replica_fail_as_the_connection_is_closed(
    pair: Pair,
) -> None:
    link = Link(pair.address)
    await link.call(WRITE, PATIENCE)
    pair.fail_over()
    pair.proxy.latency(20)
    calls = [link.call(WRITE, PATIENCE), link.call(["BLPOP", "nothing", 5], PATIENCE)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(classify(outcome) in (Trouble.ROLE, Trouble.CONNECTION) for outcome in outcomes if outcome)
    assert await link.call(WRITE, PATIENCE) == b"OK"
    link.close()


async def test_an_answer_of_a_replica_without_its_primary_ends_the_connection(pair: Pair) -> None:
    link, blocking = Link(pair.address), BlockingLink(pair.address)
    await link.call(["GET", "key"], PATIENCE)
    await asyncio.to_thread(blocking.call, ["GET", "key"], PATIENCE)
    with pair.first.client() as client:
        client.config_set("replica-serve-stale-data", "no")
        client.execute_command("REPLICAOF", "127.0.0.1", 1)
    with pytest.raises(ReplyError, match="MASTERDOWN"):
        await link.call(["GET", "key"], PATIENCE)
    with pytest.raises(ReplyError, match="MASTERDOWN"):
        await asyncio.to_thread(blocking.call, ["GET", "key"], PATIENCE)
    await aeventually(lambda: pair.others_on(pair.first) == 0)
    assert not link.connected


def test_an_answer_of_a_replica_ends_a_blocking_connection(pair: Pair) -> None:
    link = BlockingLink(pair.address)
    link.call(WRITE, PATIENCE)
    pair.fail_over()
    replies = link.call_all([["PING"], WRITE, ["PING"]], PATIENCE)
    assert [type(reply) for reply in replies] == [bytes, ReplyError, bytes]
    assert link.call(WRITE, PATIENCE) == b"OK"
    eventually(lambda: pair.others_on(pair.first) == 0)
    link.close()


@pytest.mark.parametrize("known", [True, False], ids=["known script", "unknown script"])
async def test_every_script_is_refused_by_a_replica_as_a_whole(pair: Pair, known: bool) -> None:
    """Also those that catch errors inside: none reports a replica as something else, such as a missing group."""
    keys = pair_keys()
    sent: list[Any] = [
        verbs.runs.fetch(keys, consumer="anna", free=1, lanes=READ, lifetimes=LIFETIMES),
        verbs.jobs.watch(keys, "me", ["1"], LIFETIMES),
        verbs.jobs.enqueue(keys, [a_job()]),
    ]
    broker = Broker(pair.address)
    if known:
        await broker.run_all(sent)
    pair.demote()
    for verb in sent:
        with pytest.raises((ReplyError, LinkDown)) as refused:
            await broker.run(verb)
        assert classify(refused.value) is Trouble.ROLE
    await broker.close()


async def test_subscriptions_leave_a_replica_when_the_command_connection_has_left_it(pair: Pair) -> None:
    broker, heard = Broker(pair.address), list[Any]()
    link = await broker.listen(["SUBSCRIBE", "news"], heard.append)
    await aeventually(lambda: heard)
    await broker.ask(Command(WRITE, as_is))
    pair.fail_over()
    with pytest.raises(ReplyError, match="READONLY"):
        await broker.ask(Command(WRITE, as_is))
    await broker.ask(Command(WRITE, as_is))
    assert [type(message) for message in heard[1:]] == [LinkDown]
    assert not link.connected
    again = await broker.listen(["SUBSCRIBE", "news"], heard.append)
    with pair.second.client() as client:
        eventually(lambda: client.publish("news", "here") == 1)
    await aeventually(lambda: heard[-1] == [b"message", b"news", b"here"])
    assert again.connected
    await broker.close()


async def test_a_subscription_made_before_the_address_has_moved_is_closed_when_it_has(pair: Pair) -> None:
    """Names are resolved late: a subscription that is renewed at once may lead to the old server again."""
    broker, heard = Broker(pair.address), list[Any]()
    await broker.ask(Command(WRITE, as_is))
    pair.demote()
    with pytest.raises(ReplyError, match="READONLY"):
        await broker.ask(Command(WRITE, as_is))
    early = await broker.listen(["SUBSCRIBE", "news"], heard.append)
    await aeventually(lambda: heard)
    pair.proxy.lead_to(pair.second.url)
    with pytest.raises(ReplyError, match="READONLY"):
        await broker.ask(Command(WRITE, as_is))
    assert early.connected
    await broker.ask(Command(WRITE, as_is))
    assert not early.connected
    await broker.close()


def test_a_replica_met_on_one_blocking_connection_ends_the_idle_ones(pair: Pair) -> None:
    broker = BlockingBroker(pair.address)
    pair.proxy.latency(20)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(broker.ask, [Command(WRITE, as_is)] * 12))
    pair.proxy.latency(0)
    assert pair.others_on(pair.first) >= 2
    pair.fail_over()
    with pytest.raises(ReplyError, match="READONLY"):
        broker.ask(Command(WRITE, as_is))
    eventually(lambda: pair.others_on(pair.first) == 0)
    assert broker.ask(Command(WRITE, as_is)) == b"OK"
    broker.close()


def test_a_blocking_subscription_leaves_a_replica_when_the_other_connections_have(pair: Pair) -> None:
    broker = BlockingBroker(pair.address)
    broker.ask(Command(WRITE, as_is))
    with broker.inbox.wait_for("news", "mail:1") as ticket, ThreadPoolExecutor(1) as pool:
        ticket.open(PATIENCE)
        waiting = pool.submit(ticket.message, 30.0)
        eventually(lambda: broker.inbox.waiting == 1)
        pair.fail_over()
        with pytest.raises(ReplyError, match="READONLY"):
            broker.ask(Command(WRITE, as_is))
        broker.ask(Command(WRITE, as_is))
        assert waiting.result(PATIENCE) is None
        ticket.open(PATIENCE)
        with pair.second.client() as client:
            assert client.publish("news", "mail:1\nhere") == 1
        assert ticket.message(PATIENCE) == b"mail:1\nhere"
        eventually(lambda: pair.others_on(pair.first) == 0)
    broker.close()


def pair_keys() -> Any:
    from fennelq.broker.keys import queue_keys

    return queue_keys(APP, QUEUE)
