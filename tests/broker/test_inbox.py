"""Inbox: any number of threads wait for messages on one connection, and none of them is needed by the others."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from fennelq.broker.blocking_link import BlockingLink
from fennelq.broker.connection import address_of
from fennelq.broker.inbox import Inbox, Ticket, process_name
from fennelq.broker.trouble import ReplyError
from tests.kit.proxy import Proxy
from tests.kit.server import Server
from tests.kit.waiting import eventually

pytestmark = pytest.mark.both_servers

PATIENCE = 20.0
LONG = 30.0
CHANNEL = "fq:{shop}:c:me"


class Room:
    """Threads that wait, and a client that publishes."""

    def __init__(self, server: Server, inbox: Inbox) -> None:
        self.inbox = inbox
        self.client = server.client()
        self.threads = ThreadPoolExecutor(30)

    def waits(self, topic: str, timeout: float = LONG) -> Future[bytes | None]:
        """A thread that waits for one message; it does when this returns."""
        waits = threading.Event()
        waiting = self.threads.submit(self._one, topic, timeout, waits)
        assert waits.wait(PATIENCE)
        return waiting

    def _one(self, topic: str, timeout: float, waits: threading.Event) -> bytes | None:
        with self.inbox.wait_for(CHANNEL, topic) as ticket:
            ticket.open(PATIENCE)
            waits.set()
            return ticket.message(timeout)

    def publish(self, topic: str, text: str = "") -> int:
        return int(self.client.publish(CHANNEL, f"{topic}\n{text}"))

    def listening(self) -> int:
        return sum(int(c["sub"]) > 0 for c in self.client.client_list())


@pytest.fixture
def room(server: Server) -> Iterator[Room]:
    inbox = Inbox(address_of(server.url))
    room = Room(server, inbox)
    yield room
    inbox.renew()
    room.threads.shutdown()
    room.client.close()


def test_every_thread_gets_its_own_message_over_one_connection(room: Room) -> None:
    waiting = {f"mail:{n}": room.waits(f"mail:{n}") for n in range(20)}
    assert room.listening() == 1
    for topic in reversed(waiting):
        assert room.publish(topic, f"of {topic}") == 1
    for topic, waiter in waiting.items():
        assert waiter.result(PATIENCE) == f"{topic}\nof {topic}".encode()


def test_of_some_topics_only_the_newest_message_waits_for_a_slow_thread(room: Room) -> None:
    with room.inbox.wait_for(CHANNEL, "mail:1", newest=["+mail:1"]) as slow:
        slow.open(PATIENCE)
        reader = room.waits("mail:2")
        for n in range(5):
            room.publish("+mail:1", str(n))
            room.publish("mail:1", str(n))
        room.publish("mail:2")
        assert reader.result(PATIENCE) == b"mail:2\n"
        waiting = [slow.message(PATIENCE) for _ in range(6)]
    assert waiting == [*(b"mail:1\n%d" % n for n in range(4)), b"+mail:1\n4", b"mail:1\n4"]


def test_when_the_reading_thread_has_its_message_another_one_reads_on(room: Room) -> None:
    waiting = [room.waits(f"mail:{n}") for n in range(20)]
    for n in range(20):  # each in its turn is the one that reads
        room.publish(f"mail:{n}")
        assert waiting[n].result(PATIENCE) == b"mail:%d\n" % n


def test_when_the_reading_thread_gives_up_another_one_reads_on(room: Room) -> None:
    first = room.waits("mail:1", timeout=0.05)
    second = room.waits("mail:2")
    assert first.result(PATIENCE) is None
    room.publish("mail:2")
    assert second.result(PATIENCE) == b"mail:2\n"


def test_threads_that_wait_for_the_same_all_get_it(room: Room) -> None:
    waiting = [room.waits("mail:1") for _ in range(10)]
    room.publish("mail:1", "once")
    assert [waiter.result(PATIENCE) for waiter in waiting] == [b"mail:1\nonce"] * 10


def test_every_thread_learns_of_a_lost_connection_which_is_opened_once(room: Room) -> None:
    waiting = [room.waits(f"mail:{n}") for n in range(10)]
    assert room.client.client_kill_filter(_type="pubsub") == 1
    assert [waiter.result(PATIENCE) for waiter in waiting] == [None] * 10
    again = [room.waits(f"mail:{n}") for n in range(10)]
    assert room.listening() == 1
    room.publish("mail:7")
    assert again[7].result(PATIENCE) == b"mail:7\n"


def test_a_thread_whose_connection_is_lost_opens_another_one(room: Room) -> None:
    with room.inbox.wait_for(CHANNEL, "mail:1") as ticket:
        for _ in range(3):
            ticket.open(PATIENCE)
            room.client.client_kill_filter(_type="pubsub")
            assert ticket.message(PATIENCE) is None
        ticket.open(PATIENCE)
        assert room.publish("mail:1") == 1
        assert ticket.message(PATIENCE) == b"mail:1\n"


def test_threads_that_begin_at_once_wait_for_one_subscription(server: Server, proxy: Proxy) -> None:
    inbox = Inbox(address_of(proxy.url))
    proxy.latency(50)
    together = threading.Barrier(10)

    def begin(n: int) -> bytes | None:
        with inbox.wait_for(CHANNEL, f"mail:{n}") as ticket:
            together.wait(PATIENCE)
            ticket.open(PATIENCE)
            together.wait(PATIENCE)
            return ticket.message(LONG)

    with ThreadPoolExecutor(10) as threads, server.client() as client:
        waiting = [threads.submit(begin, n) for n in range(10)]
        eventually(lambda: inbox.waiting == 10)
        for n in range(10):
            client.publish(CHANNEL, f"mail:{n}\n")
        assert [waiter.result(PATIENCE) for waiter in waiting] == [b"mail:%d\n" % n for n in range(10)]
    assert proxy.counters.connections == 1
    inbox.renew()


def test_every_thread_learns_of_a_renewed_connection(room: Room) -> None:
    waiting = [room.waits(f"mail:{n}") for n in range(10)]
    room.inbox.renew()
    assert [waiter.result(PATIENCE) for waiter in waiting] == [None] * 10


def test_what_was_published_while_no_thread_waited_is_not_taken_for_news(room: Room) -> None:
    """A job may have been replayed since: what ended once goes on now."""
    assert room.waits("mail:1", timeout=0.01).result(PATIENCE) is None
    assert room.publish("mail:1", "old") == 1
    waiting = room.waits("mail:1")
    room.publish("mail:1", "new")
    assert waiting.result(PATIENCE) == b"mail:1\nnew"


def test_the_connection_is_kept_from_one_waiter_to_the_next(server: Server, proxy: Proxy) -> None:
    inbox = Inbox(address_of(proxy.url))
    for n in range(50):
        with inbox.wait_for(CHANNEL, f"mail:{n}") as ticket:
            ticket.open(PATIENCE)
    assert proxy.counters.connections == 1
    inbox.renew()


def test_a_refusal_is_remembered_and_not_asked_for_again_by_every_waiter(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", "resetchannels")
        client.config_resetstat()
        inbox = Inbox(address_of(server.url.replace("redis://", "redis://deaf:pw@")))
        for n in range(5):
            with inbox.wait_for(CHANNEL, f"mail:{n}") as ticket, pytest.raises(ReplyError, match="NOPERM"):
                ticket.open(PATIENCE)
        calls = client.info("commandstats")["cmdstat_subscribe"]
        assert calls["rejected_calls"] + calls["calls"] == 1
        client.execute_command("ACL", "SETUSER", "deaf", "allchannels")
        monkeypatch.setattr("fennelq.broker.inbox.REFUSED_FOR", 0.0)
        with inbox.wait_for(CHANNEL, "mail:1") as ticket:
            ticket.open(PATIENCE)
            client.publish(CHANNEL, "mail:1\n")
            assert ticket.message(PATIENCE) == b"mail:1\n"
        inbox.renew()
        client.execute_command("ACL", "DELUSER", "deaf")


def test_a_thread_whose_time_was_used_up_by_the_one_before_has_timed_out(room: Room) -> None:
    """With a negative timeout for connecting, the socket would complain of the number."""
    with room.inbox.wait_for(CHANNEL, "mail:1") as ticket:
        with pytest.raises(TimeoutError, match="not subscribed in time"):
            ticket.open(-0.5)
        ticket.open(PATIENCE)


def test_a_thread_that_is_interrupted_while_it_reads_does_not_take_the_others_with_it(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = threading.Event()

    def read_once(ticket: Ticket) -> None:
        with pytest.raises(KeyboardInterrupt):
            ticket.message(LONG)
        interrupted.set()

    with room.inbox.wait_for(CHANNEL, "mail:1") as ticket:
        ticket.open(PATIENCE)
        may_fail = threading.Event()

        def fail(link: BlockingLink, timeout: float) -> bytes:
            may_fail.wait(timeout)
            raise KeyboardInterrupt

        monkeypatch.setattr(BlockingLink, "read", fail)
        reader = threading.Thread(target=read_once, args=(ticket,))
        reader.start()
        eventually(lambda: room.inbox.waiting == 1)
        other = room.waits("mail:2")
        monkeypatch.undo()
        may_fail.set()
        reader.join(PATIENCE)
    assert interrupted.is_set()
    assert other.result(PATIENCE) is None
    again = room.waits("mail:2")
    room.publish("mail:2")
    assert again.result(PATIENCE) == b"mail:2\n"


@pytest.mark.parametrize("state", ["idle", "a thread reads", "a thread holds the lock"])
def test_a_forked_child_has_an_inbox_of_its_own(room: Room, state: str) -> None:
    waiting = None if state == "idle" else room.waits("mail:1")
    if state == "a thread holds the lock":
        with room.inbox.wait_for(CHANNEL, "mail:2") as ticket, ticket.wakes:
            name = in_a_child(room)
    else:
        name = in_a_child(room)
    assert name
    assert name != process_name()
    if waiting is not None:
        room.publish("mail:1")
        assert waiting.result(PATIENCE) == b"mail:1\n"


def in_a_child(room: Room) -> str:
    """What the child calls itself, when it has subscribed and got a message; nothing if it hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with room.inbox.wait_for("child", "mail:9") as ticket:
            ticket.open(PATIENCE)
            os.write(writing, b"?")
            if ticket.message(PATIENCE) == b"mail:9\n":
                os.write(writing, process_name().encode())
        os._exit(0)
    os.close(writing)
    killer = threading.Timer(10, os.kill, (child, 9))
    killer.start()
    with os.fdopen(reading, "rb", buffering=0) as answer:
        if answer.read(1) == b"?":
            room.client.publish("child", "mail:9\n")
        heard = answer.read(100)
    os.waitpid(child, 0)
    killer.cancel()
    return (heard or b"").decode()
