"""Link and BlockingLink send each command once; Broker and BlockingBroker teach scripts to servers that forgot them."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.blocking_link import BlockingLink
from fennelq.broker.broker import Broker
from fennelq.broker.connection import Address, address_of
from fennelq.broker.diagnosis import diagnose
from fennelq.broker.link import Link, LinkDown
from fennelq.broker.resp import packed
from fennelq.broker.talk import ask_all
from fennelq.broker.trouble import ReplyError, Trouble, classify
from fennelq.broker.verb import Command, as_is
from tests.broker.desk import Desk, a_job, some_jobs
from tests.kit.namespace import Namespace
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.troubles import listening, replying
from tests.kit.waiting import aeventually, eventually

pytestmark = pytest.mark.both_servers

PATIENCE = 20.0
SOON = 0.2


def echo(number: int) -> list[str]:
    return ["ECHO", f"{number}"]


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[Link]:
    link = Link(address_of(redis_url))
    yield link
    link.close()


@pytest.fixture
async def through(proxy: Proxy) -> AsyncIterator[Link]:
    """A link that goes through `proxy`, connected."""
    link = Link(address_of(proxy.url))
    await link.call(["PING"], PATIENCE)
    yield link
    link.close()


# Link: asking


async def test_answers_come_in_the_order_of_the_questions(link: Link) -> None:
    answers = await asyncio.gather(*(link.call(echo(number), PATIENCE) for number in range(500)))
    assert answers == [b"%d" % number for number in range(500)]


async def test_any_number_of_calls_share_one_connection_and_one_round_trip(proxy: Proxy) -> None:
    link = Link(address_of(proxy.url))
    await asyncio.gather(*(link.call(echo(number), PATIENCE) for number in range(50)))
    assert proxy.counters.connections == 1
    proxy.latency(30)
    began = time.monotonic()
    await asyncio.gather(*(link.call(echo(number), PATIENCE) for number in range(500)))
    assert 0.06 <= time.monotonic() - began < 15, "one after another, they take 30 s"
    link.close()


async def test_commands_and_replies_may_be_large_and_binary(link: Link) -> None:
    large = bytes(range(256)) * 20_000
    assert await link.call([b"ECHO", large], PATIENCE) == large
    assert await link.call(["SET", "key", 7], PATIENCE) == b"OK"
    assert await link.call(["GET", "key"], PATIENCE) == b"7"


async def test_an_error_of_the_server_is_raised_and_the_link_goes_on(link: Link) -> None:
    with pytest.raises(ReplyError, match="wrong number of arguments") as raised:
        await link.call(["ECHO"], PATIENCE)
    assert raised.value.word == "ERR"
    assert link.connected
    assert await link.call(echo(1), PATIENCE) == b"1"


async def test_a_command_that_cannot_be_encoded_fails_no_other_call(link: Link) -> None:
    calls = [
        link.call(echo(1), PATIENCE),
        link.call(cast("Any", [object()]), PATIENCE),
        link.call(echo(2), PATIENCE),
    ]
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, third) == (b"1", b"2")
    assert isinstance(second, TypeError)


async def test_a_refused_channel_takes_no_other_one_with_it(desk: Desk, server: Server) -> None:
    """Also when the command of the other one was sent before any reply of the server."""
    cast("Any", desk.redis).execute_command("ACL", "SETUSER", "default", "resetchannels", "&bell")
    link, heard = Link(address_of(server.url)), list[Any]()
    try:
        await link.listen(["SUBSCRIBE", "news"], heard.append)
        link.post(["SSUBSCRIBE", "bell"])
        await aeventually(lambda: len(heard) == 2)
        link.post(["PING"])
        await aeventually(lambda: len(heard) == 3)
    finally:
        cast("Any", desk.redis).execute_command("ACL", "SETUSER", "default", "allchannels")
        link.close()
    assert [getattr(heard[0], "word", ""), *heard[1][:2]] == ["NOPERM", b"ssubscribe", b"bell"]


async def test_a_cancelled_call_abandons_its_own_answer_only(through: Link, proxy: Proxy) -> None:
    proxy.latency(30)
    calls = [asyncio.create_task(through.call(echo(number), PATIENCE)) for number in range(20)]
    await asyncio.sleep(0.01)
    for cancelled in calls[3::4]:
        cancelled.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers[3::4]] == [asyncio.CancelledError] * 5
    assert [answer for place, answer in enumerate(answers) if place % 4 != 3] == [
        b"%d" % number for number in range(20) if number % 4 != 3
    ]
    assert await through.call(echo(99), PATIENCE) == b"99"
    assert proxy.counters.connections == 1


# Link: trouble


async def test_a_call_that_is_not_answered_in_time_ends_the_connection(through: Link, proxy: Proxy) -> None:
    proxy.blackhole()
    patient = [asyncio.create_task(through.call(echo(number), PATIENCE)) for number in range(3)]
    with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
        await through.call(echo(99), SOON)
    outcomes = await asyncio.gather(*patient, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LinkDown] * 3
    assert not through.connected


async def test_a_late_answer_is_never_taken_for_that_of_another_question(through: Link, proxy: Proxy) -> None:
    proxy.blackhole()
    with pytest.raises(TimeoutError):
        await through.call(echo(1), SOON)
    proxy.up()
    assert await through.call(echo(2), PATIENCE) == b"2"
    assert proxy.counters.connections == 2


async def test_a_call_is_not_repeated_by_itself(through: Link, proxy: Proxy, server: Server) -> None:
    proxy.drop_reply(command="INCR", cut=True)
    with pytest.raises(LinkDown):
        await through.call(["INCR", "counter"], PATIENCE)
    assert await through.call(["GET", "counter"], PATIENCE) == b"1"


async def test_a_server_that_dies_ends_its_calls_and_is_found_again(server: Server, link: Link) -> None:
    await link.call(["PING"], PATIENCE)
    waiting = asyncio.create_task(link.call(["BLPOP", "nothing", 0], PATIENCE))
    await asyncio.sleep(0.01)
    await asyncio.to_thread(server.kill)
    with pytest.raises(LinkDown):
        await waiting
    assert not link.connected
    with pytest.raises(OSError) as refused:  # noqa: PT011 - what the system calls it, it is a trouble that passes
        await link.call(["PING"], PATIENCE)
    assert classify(refused.value) is Trouble.CONNECTION
    await asyncio.to_thread(server.start)
    assert await link.call(["PING"], PATIENCE) == b"PONG"


async def test_a_connection_that_was_reset_is_down(through: Link, proxy: Proxy) -> None:
    proxy.cut_all()
    await aeventually(lambda: not through.connected)
    assert await through.call(echo(1), PATIENCE) == b"1"


async def test_all_callers_that_wait_for_a_connection_share_it(proxy: Proxy) -> None:
    link = Link(address_of(proxy.url))
    calls = [asyncio.create_task(link.call(echo(number), PATIENCE)) for number in range(10)]
    await asyncio.sleep(0)
    calls[0].cancel()
    answers = await asyncio.gather(*calls[1:])
    assert answers == [b"%d" % number for number in range(1, 10)]
    assert proxy.counters.connections == 1
    link.close()


async def test_a_connection_that_no_caller_waits_for_any_more_is_used_or_closed(
    proxy: Proxy, server: Server
) -> None:
    link = Link(address_of(proxy.url))
    call = asyncio.create_task(link.call(echo(1), PATIENCE))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    await aeventually(lambda: proxy.counters.connections == 1)
    assert await link.call(echo(2), PATIENCE) == b"2"
    link.close()
    await aeventually(lambda: proxy.counters.open == 0)


async def test_closing_ends_the_calls_under_way(through: Link, proxy: Proxy) -> None:
    proxy.blackhole()
    call = asyncio.create_task(through.call(echo(1), PATIENCE))
    await asyncio.sleep(0.01)
    through.close()
    with pytest.raises(LinkDown, match="closed"):
        await call
    assert not through.connected


async def test_closing_ends_a_connection_that_is_being_made(proxy: Proxy) -> None:
    link = Link(address_of(proxy.url))
    call = asyncio.create_task(link.call(echo(1), PATIENCE))
    await asyncio.sleep(0)
    link.close()
    with pytest.raises(LinkDown):
        await call
    assert not link.connected
    await aeventually(lambda: proxy.counters.open == 0)


async def test_a_server_that_is_not_redis_is_trouble_with_the_connection() -> None:
    async def chatter(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    impostor = await asyncio.start_server(chatter, "127.0.0.1", 0)
    link = Link(address_of(f"redis://127.0.0.1:{impostor.sockets[0].getsockname()[1]}"))
    with pytest.raises(LinkDown):
        await link.call(["PING"], PATIENCE)
    assert not link.connected
    impostor.close()


# Link: listening


async def test_a_listening_link_hears_every_message_and_at_last_its_end(
    redis_url: str, server: Server
) -> None:
    link, heard = Link(address_of(redis_url)), list[Any]()
    await link.listen(["SUBSCRIBE", "news"], heard.append)
    await aeventually(lambda: heard == [[b"subscribe", b"news", 1]])
    with server.client() as client:
        for number in range(3):
            client.publish("news", f"{number}")
    await aeventually(lambda: len(heard) == 4)
    assert heard[1:] == [[b"message", b"news", b"%d" % number] for number in range(3)]
    await asyncio.to_thread(server.kill)
    await aeventually(lambda: len(heard) == 5)
    assert isinstance(heard[4], LinkDown)
    assert not link.connected
    await asyncio.to_thread(server.start)


async def test_closing_a_listening_link_is_reported_once(redis_url: str) -> None:
    link, heard = Link(address_of(redis_url)), list[Any]()
    await link.listen(["SUBSCRIBE", "news"], heard.append)
    await aeventually(lambda: heard)
    link.close()
    await asyncio.sleep(0.01)
    assert [type(message) for message in heard[1:]] == [LinkDown]


# BlockingLink


@pytest.fixture
def blocking(proxy: Proxy) -> Iterator[BlockingLink]:
    link = BlockingLink(address_of(proxy.url))
    yield link
    link.close()


def test_a_blocking_link_asks_and_answers(blocking: BlockingLink, proxy: Proxy) -> None:
    large = bytes(range(256)) * 20_000
    assert [blocking.call(echo(number), PATIENCE) for number in range(3)] == [b"0", b"1", b"2"]
    assert blocking.call([b"ECHO", large], PATIENCE) == large
    assert proxy.counters.connections == 1


def test_a_blocking_link_goes_on_after_an_error_of_the_server(blocking: BlockingLink, proxy: Proxy) -> None:
    with pytest.raises(ReplyError):
        blocking.call(["ECHO"], PATIENCE)
    assert blocking.call(echo(1), PATIENCE) == b"1"
    assert proxy.counters.connections == 1


def test_a_blocking_link_never_hears_a_late_answer(blocking: BlockingLink, proxy: Proxy) -> None:
    blocking.call(["PING"], PATIENCE)
    proxy.blackhole()
    with pytest.raises(TimeoutError):
        blocking.call(echo(1), SOON)
    proxy.up()
    assert blocking.call(echo(2), PATIENCE) == b"2"


def test_a_blocking_call_is_not_repeated_by_itself(
    blocking: BlockingLink, proxy: Proxy, server: Server
) -> None:
    proxy.drop_reply(command="INCR", cut=True)
    with pytest.raises(OSError):  # noqa: PT011
        blocking.call(["INCR", "counter"], PATIENCE)
    assert blocking.call(["GET", "counter"], PATIENCE) == b"1"


def test_a_blocking_link_finds_its_server_again(server: Server, redis_url: str) -> None:
    link = BlockingLink(address_of(redis_url))
    link.call(["PING"], PATIENCE)
    server.kill()
    for _ in range(2):
        with pytest.raises(OSError) as gone:  # noqa: PT011
            link.call(["PING"], PATIENCE)
        assert classify(gone.value) is Trouble.CONNECTION
    server.start()
    assert link.call(["PING"], PATIENCE) == b"PONG"
    link.close()


# Passwords, databases, sockets, TLS


@pytest.fixture
def guarded(server_kind: Any, tmp_path: Path) -> Iterator[Server]:
    """A server that asks for a password, also on a unix socket."""
    with Server(server_kind, password="s3cret/@:", unix_socket=True) as guarded:
        yield guarded


async def test_the_password_of_the_url_is_sent_first(guarded: Server) -> None:
    for url in (guarded.url, guarded.unix_url):
        link, blocking = Link(address_of(url)), BlockingLink(address_of(url))
        assert await link.call(["PING"], PATIENCE) == b"PONG"
        assert blocking.call(["PING"], PATIENCE) == b"PONG"
        link.close()
        blocking.close()


@pytest.mark.parametrize("password", ["wr0ng", ""])
async def test_a_wrong_password_is_fatal_and_never_shown(guarded: Server, password: str) -> None:
    address = address_of(f"redis://:{password}@127.0.0.1:{guarded.port}")
    link, blocking = Link(address), BlockingLink(address)
    for _ in range(2):
        with pytest.raises(ReplyError) as refused:
            await link.call(["PING"], PATIENCE)
        assert classify(refused.value) is Trouble.FATAL
        with pytest.raises(ReplyError) as refused:
            blocking.call(["PING"], PATIENCE)
        assert classify(refused.value) is Trouble.FATAL
        assert "wr0ng" not in str(refused.value)
    link.close()
    blocking.close()


async def test_a_database_is_selected_on_every_connection(server: Server) -> None:
    address = address_of(f"redis://127.0.0.1:{server.port}/3")
    link, blocking = Link(address), BlockingLink(address)
    for _ in range(2):
        await link.call(["SET", "where", "here"], PATIENCE)
        assert blocking.call(["GET", "where"], PATIENCE) == b"here"
        link.close()
        blocking.close()
    with server.client() as client:
        assert client.get("where") is None


def in_database_3(proxy: Proxy) -> Address:
    return address_of(f"{proxy.url.removesuffix('/0')}/3")


def test_a_blocking_connection_that_was_not_greeted_to_the_end_is_never_used(
    proxy: Proxy, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the late answer to the greeting would be taken for that of the first question."""
    monkeypatch.setattr("fennelq.broker.blocking_link.CONNECT_TIMEOUT", SOON)
    link = BlockingLink(in_database_3(proxy))
    proxy.blackhole()
    with pytest.raises(TimeoutError):
        link.call(["SET", "where", "here"], PATIENCE)
    proxy.up()
    assert link.call(["GET", "where"], PATIENCE) is None
    assert link.call(["SET", "where", "here"], PATIENCE) == b"OK"
    link.close()
    with server.client() as client:
        assert client.get("where") is None


async def test_a_connection_that_was_not_greeted_to_the_end_is_never_used(
    proxy: Proxy, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fennelq.broker.link.CONNECT_TIMEOUT", SOON)
    link = Link(in_database_3(proxy))
    proxy.blackhole()
    with pytest.raises(TimeoutError):
        await link.call(["SET", "where", "here"], PATIENCE)
    proxy.up()
    assert await link.call(["GET", "where"], PATIENCE) is None
    assert await link.call(["SET", "where", "here"], PATIENCE) == b"OK"
    link.close()
    with server.client() as client:
        assert client.get("where") is None


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a self-signed certificate for 127.0.0.1."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("this machine has no openssl to sign a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    key, signed, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=fennelq test",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(signed)]
    subprocess.run(command, check=True, capture_output=True)
    both.write_text(key.read_text() + signed.read_text())
    return both


@asynccontextmanager
async def behind_tls(server: Server, certificate: Path) -> AsyncGenerator[int]:
    """The port of something that speaks TLS for a server: the bundled Valkey is built without."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(carry(near, forth), carry(far, back), return_exceptions=True)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as listener:
        yield listener.sockets[0].getsockname()[1]


async def test_tls_is_spoken_with_who_can_prove_himself(server: Server, certificate: Path) -> None:
    async with behind_tls(server, certificate) as port:
        address = address_of(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}")
        link, blocking = Link(address), BlockingLink(address)
        assert await link.call(["PING"], PATIENCE) == b"PONG"
        assert await asyncio.to_thread(blocking.call, ["PING"], PATIENCE) == b"PONG"
        link.close()
        blocking.close()


async def test_tls_with_an_unknown_server_is_refused_unless_asked_for(
    server: Server, certificate: Path
) -> None:
    async with behind_tls(server, certificate) as port:
        url = f"rediss://127.0.0.1:{port}"
        with pytest.raises(ssl.SSLCertVerificationError):
            await Link(address_of(url)).call(["PING"], PATIENCE)
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(BlockingLink(address_of(url)).call, ["PING"], PATIENCE)
        link = Link(address_of(f"{url}?ssl_cert_reqs=none"))
        assert await link.call(["PING"], PATIENCE) == b"PONG"
        link.close()


# Broker


@pytest.fixture
async def broker(desk: Desk, redis_url: str) -> AsyncIterator[Broker]:
    broker = Broker(address_of(redis_url))
    yield broker
    await broker.close()


async def test_a_server_that_forgot_a_script_is_taught_it(broker: Broker, desk: Desk) -> None:
    for number in range(3):
        desk.redis.script_flush()
        assert await broker.run(verbs.jobs.enqueue(desk.keys, [a_job(str(number))])) == [1]
    assert desk.waiting() == ["0", "1", "2"]


async def test_many_are_taught_at_once_and_nothing_is_done_twice(broker: Broker, desk: Desk) -> None:
    desk.redis.script_flush()
    sent = [verbs.jobs.enqueue(desk.keys, [job]) for job in some_jobs(50)]
    assert await broker.run_all(sent) == [[1]] * 50
    assert len(desk.waiting()) == 50


def test_a_blocking_broker_teaches_too(desk: Desk) -> None:
    for number in range(3):
        desk.redis.script_flush()
        assert desk.enqueue(a_job(str(number))) == [1]


async def test_errors_reach_who_asked(broker: Broker, desk: Desk) -> None:
    desk.redis.delete(desk.keys["s"])
    desk.redis.set(desk.keys["s"], "what?")
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        await broker.run(verbs.jobs.enqueue(desk.keys, [a_job()]))
    desk.redis.delete(desk.keys["s"])


async def test_a_verb_whose_reply_was_lost_may_be_sent_again(desk: Desk, proxy: Proxy) -> None:
    broker = Broker(address_of(proxy.url))
    # A server that does not know the script yet would answer that, and this would be the answer that is lost.
    await broker.run(verbs.jobs.enqueue(desk.keys, []))
    proxy.drop_reply(command="EVALSHA", cut=True)
    with pytest.raises(LinkDown):
        await broker.run(verbs.jobs.enqueue(desk.keys, [a_job()]))
    assert await broker.run(verbs.jobs.enqueue(desk.keys, [a_job()])) == [0]
    assert desk.waiting() == ["1"]
    await broker.close()


async def test_many_questions_take_one_round_trip(desk: Desk, proxy: Proxy) -> None:
    broker = Broker(address_of(proxy.url))
    await broker.ask(Command(["PING"], as_is))
    proxy.latency(30)
    began = time.monotonic()
    assert await broker.converse(ask_all(Command(echo(n), int) for n in range(500))) == list(range(500))
    assert time.monotonic() - began < 15, "one after another, they take 30 s"
    await broker.close()


async def test_a_broker_that_is_closed_leaves_no_connection(desk: Desk, proxy: Proxy) -> None:
    broker = Broker(address_of(proxy.url))
    await broker.ask(Command(["PING"], as_is))
    listening = await broker.listen(["SUBSCRIBE", "news"], lambda _: None)
    await aeventually(lambda: proxy.counters.open == 2)
    await broker.close()
    assert not listening.connected
    await aeventually(lambda: proxy.counters.open == 0)


# BlockingBroker


def test_threads_have_connections_of_their_own(desk: Desk, proxy: Proxy) -> None:
    broker = BlockingBroker(address_of(proxy.url))
    proxy.latency(20)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(broker.ask, [Command(echo(number), int) for number in range(100)]))
    assert answers == list(range(100))
    assert 2 <= proxy.counters.connections <= 8
    broker.close()
    eventually(lambda: proxy.counters.open == 0)


def test_one_thread_needs_one_connection(desk: Desk, proxy: Proxy) -> None:
    broker = BlockingBroker(address_of(proxy.url))
    for job in some_jobs(10):
        broker.run(verbs.jobs.enqueue(desk.keys, [job]))
    assert broker.run(verbs.queues.promote(desk.keys, 1)) == (0, -1)
    assert proxy.counters.connections == 1
    broker.close()


def in_a_child(work: Callable[[], bytes]) -> bytes:
    """What `work` returns in a forked child; nothing if the child hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, work())
        os._exit(0)
    os.close(writing)
    killer = threading.Timer(10, os.kill, (child, 9))
    killer.start()
    with os.fdopen(reading, "rb") as answer:
        reply = answer.read()
    os.waitpid(child, 0)
    killer.cancel()
    return reply


def test_after_a_fork_parent_and_child_talk_on_connections_of_their_own(desk: Desk, proxy: Proxy) -> None:
    broker = BlockingBroker(address_of(proxy.url))
    who = Command(["CLIENT", "ID"], int)
    mine = broker.ask(who)
    childs = int(in_a_child(lambda: b"%d" % broker.ask(who)))
    assert childs != mine
    assert broker.ask(who) == mine
    assert proxy.counters.connections == 2
    broker.close()


def test_a_fork_while_another_thread_holds_the_lock_does_not_hang_the_child(
    desk: Desk, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = threading.Lock()
    with monkeypatch.context() as patch:
        patch.setattr("fennelq.broker.blocking.threading", Namespace(threading, Lock=lambda: lock))
        broker = BlockingBroker(address_of(redis_url))
    with lock:
        assert in_a_child(lambda: cast("bytes", broker.ask(Command(["PING"], as_is)))) == b"PONG"
    broker.close()


def test_a_child_sends_jobs_while_its_parent_does(desk: Desk) -> None:
    desk.enqueue(a_job("first"))
    assert in_a_child(lambda: b"%d" % desk.enqueue(a_job("child"))[0]) == b"1"
    assert desk.enqueue(a_job("parent"), a_job("child")) == [1, 0]
    assert desk.waiting() == ["first", "child", "parent"]


# A server that refuses connections

NO_ROOM = b"-ERR max number of clients reached\r\n"


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    """The address of a server that has no room: a client that speaks first gets no reply, because its words meet a
    closed connection; one that listens first learns why."""
    for module in ("link", "blocking_link"):
        monkeypatch.setattr(f"fennelq.broker.{module}.REFUSED_WITHIN", 10.0)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client:
                    if not select.select([client], [], [], 0.3)[0]:
                        client.sendall(NO_ROOM)

    thread = threading.Thread(target=serve)
    thread.start()
    yield address_of(f"redis://127.0.0.1:{listener.getsockname()[1]}/1")
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


async def test_after_a_connection_without_a_reply_the_server_may_speak_first(refusing: Address) -> None:
    link = Link(refusing)
    with pytest.raises(LinkDown):
        await link.call(["PING"], 5.0)
    with pytest.raises(ReplyError, match="max number of clients reached"):
        await link.call(["PING"], 5.0)
    link.close()


def test_without_a_loop_the_server_may_speak_first_as_well(refusing: Address) -> None:
    link = BlockingLink(refusing)
    with pytest.raises(LinkDown):
        link.call(["PING"], 5.0)
    with pytest.raises(ReplyError, match="max number of clients reached"):
        link.call(["PING"], 5.0)
    link.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    """The address of a server behind a network that cuts the first connection without a reply, and later ones when they
    are silent for a moment."""
    for module in ("link", "blocking_link"):
        monkeypatch.setattr(f"fennelq.broker.{module}.REFUSED_WITHIN", 10.0)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            listener.accept()[0].close()
            while True:
                client, _ = listener.accept()
                with client, suppress(OSError):  # a client that has gone does not end the server
                    while select.select([client], [], [], 0.3)[0] and client.recv(1000):
                        client.sendall(b"+OK\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    yield address_of(f"redis://127.0.0.1:{listener.getsockname()[1]}/1")
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


async def test_a_link_that_has_listened_in_vain_speaks_first_the_next_time(hasty: Address) -> None:
    """Otherwise it would never get through a network that cuts silent connections."""
    link = Link(hasty)
    for _ in range(2):
        with pytest.raises(LinkDown):
            await link.call(["PING"], 30.0)
    assert await link.call(["PING"], 30.0) == b"OK"
    link.close()


def test_without_a_loop_a_link_that_has_listened_in_vain_speaks_first_as_well(hasty: Address) -> None:
    link = BlockingLink(hasty)
    for _ in range(2):
        with pytest.raises(LinkDown):
            link.call(["PING"], 30.0)
    assert link.call(["PING"], 30.0) == b"OK"
    link.close()


async def test_a_refusal_that_came_before_anything_was_sent_is_the_error_of_what_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of a subscription, which would otherwise only hear that the connection was closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = Link(address_of(f"redis://127.0.0.1:{listener.getsockname()[1]}"))
        wire = await link.connect()
        client, _ = listener.accept()
        received, receive = asyncio.Event(), wire.data_received

        def note(data: bytes) -> None:
            receive(data)
            received.set()

        monkeypatch.setattr(wire, "data_received", note)
        with client:  # it stays open: only the reply shows that the server refuses
            client.sendall(NO_ROOM)
            await received.wait()
            with pytest.raises(ReplyError, match="max number of clients reached"):
                wire.write(["SUBSCRIBE", "news"])
        link.close()


async def test_a_refusal_is_read_before_a_second_write_can_fail() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = Link(address_of(f"redis://127.0.0.1:{listener.getsockname()[1]}"))
        wire = await link.connect()
        client, _ = listener.accept()
        with client:
            first = wire.ask(["PING"])
            assert select.select([client], [], [], PATIENCE)[0]
            client.sendall(NO_ROOM)
        second = wire.ask(["PING"])  # the command that was not read has made the kernel reset the connection
        assert "max number of clients reached" in str(await first)
        with pytest.raises(ReplyError, match="max number of clients reached"):
            await second
        link.close()


async def test_what_the_reply_of_a_replica_ends_is_explained_by_it() -> None:
    with replying(lambda _: b"-READONLY You can't write against a read only replica.\r\n") as url:
        address = address_of(url)
        link = Link(address)
        for error in await asyncio.gather(
            *(link.call(["PING"], PATIENCE) for _ in range(3)), return_exceptions=True
        ):
            assert isinstance(error, ReplyError | LinkDown)
            assert diagnose(address, error).reason == "is a replica and refuses writes (READONLY)"
        link.close()


@pytest.mark.parametrize("size", [1, 1 << 26], ids=["after the write", "during the write"])
def test_without_a_loop_a_refusal_is_the_error_of_all_calls_of_a_round_trip(size: int) -> None:
    def refuse(client: socket.socket) -> None:
        client.recv(1)
        client.sendall(NO_ROOM)

    with listening(refuse) as port:
        link = BlockingLink(address_of(f"redis://127.0.0.1:{port}"))
        for _ in range(3):
            with pytest.raises(ReplyError, match="max number of clients reached"):
                link.call_all([["PING"], ["ECHO", bytes(size)]], PATIENCE)


class _Interrupted(int):
    """A number during whose conversion a handler of a signal raises an exception, as that of Ctrl-C does."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_a_signal_while_a_command_is_packed_does_not_crash_the_process() -> None:
    with pytest.raises(KeyboardInterrupt):
        packed(["EXPIRE", b"key", _Interrupted(60)])
    assert packed(["EXPIRE", b"key", 60]) == b"*3\r\n$6\r\nEXPIRE\r\n$3\r\nkey\r\n$2\r\n60\r\n"
