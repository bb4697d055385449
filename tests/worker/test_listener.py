"""The listener: messages arrive at once, and what was published while the connection was away is looked up."""

from __future__ import annotations

from typing import Any, cast

import pytest
from structlog.typing import EventDict

from fennelq.broker import verbs
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import AppKeys, QueueKeys, queue_keys
from fennelq.worker.bus import HandOverWaits, JobDue, SchedulesChanged
from fennelq.worker.duties.listener import Listener
from tests.kit.jobs import sent
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.worker.states import published, state_of

KEYS = AppKeys("shop")


class Listening:
    """A listener, and what it publishes."""

    def __init__(self, broker: Broker) -> None:
        self.state = state_of(broker)
        self.listener = Listener(self.state)
        self.due: list[float] = []
        self.changes = 0
        self.state.bus.subscribe(JobDue, lambda job: self.due.append(job.seconds))
        self.state.bus.subscribe(SchedulesChanged, self._changed)

    def forget(self) -> None:
        self.due.clear()
        self.changes = 0

    def _changed(self, _: SchedulesChanged) -> None:
        self.changes += 1


@pytest.fixture
async def heard(broker: Broker) -> Listening:
    """A listener that listens, and has published already that everything has to be looked up."""
    heard = Listening(broker)
    await heard.listener.tick()
    await aeventually(lambda: heard.state.listening and heard.changes == 2)
    heard.forget()
    return heard


def publish(server: Server, channel: str, text: str) -> None:
    with server.client() as client:
        assert client.publish(channel, text) == 1


async def test_an_executor_that_begins_to_listen_looks_everything_up(broker: Broker) -> None:
    heard = Listening(broker)
    assert not heard.state.listening
    await heard.listener.tick()
    await aeventually(lambda: heard.state.listening)
    assert heard.due[0] == 0.0
    assert heard.changes >= 1


async def test_it_hears_that_something_is_due_sooner(
    heard: Listening, broker: Broker, mail: QueueKeys
) -> None:
    await broker.run(verbs.jobs.enqueue(mail, [sent("mail", "1", "a:b", delay_ms=2500)]))
    await aeventually(lambda: heard.due == [2.5])
    await broker.run(verbs.jobs.enqueue(mail, [sent("mail", "2", "a:b", delay_ms=5000)]))
    other = queue_keys("shop", "other")
    await broker.run(verbs.jobs.enqueue(other, [sent("other", "1", "a:b", delay_ms=1000)]))
    await aeventually(lambda: heard.due == [2.5, 1.0])


async def test_it_hears_that_a_schedule_has_changed(heard: Listening, broker: Broker) -> None:
    await broker.run(verbs.schedules.schedule(KEYS, "put", "report", b"{}", 1))
    await aeventually(lambda: heard.changes == 1)
    assert heard.due == []


async def test_it_hears_whose_outbox_has_something_in_it(heard: Listening, server: Server) -> None:
    facts = published(heard.state, HandOverWaits)
    publish(server, f"{queue_keys('shop', 'mail').prefix}wake", "out")
    publish(server, KEYS["wake"], "out")
    await aeventually(lambda: facts == [HandOverWaits("mail"), HandOverWaits(None)])


@pytest.mark.parametrize("text", ["", "soon", "nan", "cron2"])
async def test_what_it_does_not_understand_it_ignores(heard: Listening, server: Server, text: str) -> None:
    publish(server, KEYS["wake"], text)
    publish(server, KEYS["wake"], "cron")
    await aeventually(lambda: heard.changes == 1)
    assert [due for due in heard.due if due == due] == []
    assert heard.state.listening


async def test_a_channel_whose_name_is_not_utf_8_is_ignored(heard: Listening, server: Server) -> None:
    facts = published(heard.state, HandOverWaits)
    with server.client() as client:
        for text in (b"out", b"1000"):
            assert client.publish(b"fq:{shop/\xff}:wake", text) == 1
    publish(server, KEYS["wake"], "out")
    await aeventually(lambda: facts == [HandOverWaits(None)])
    assert heard.due == [1.0]
    assert heard.state.listening


async def test_other_apps_are_not_heard(heard: Listening, server: Server) -> None:
    with server.client() as client:
        for other in ("fq:{shop2}:wake", "fq:{ashop/mail}:wake", "fq:{shop}:wake2"):
            assert client.publish(other, "0") == 0


async def test_a_connection_that_was_lost_is_made_again_and_everything_looked_up(
    heard: Listening, server: Server
) -> None:
    with server.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    await aeventually(lambda: heard.listener.woken.is_set())
    assert not heard.state.listening
    await heard.listener.tick()
    await aeventually(lambda: heard.state.listening and heard.changes == 2)
    assert heard.due == [0.0, 0.0]
    publish(server, KEYS["wake"], "1500")
    await aeventually(lambda: heard.due[-1] == 1.5)


async def test_while_it_listens_a_tick_does_nothing(heard: Listening, server: Server) -> None:
    for _ in range(3):
        await heard.listener.tick()
    with server.client() as client:
        assert cast("Any", client.pubsub_numpat()) == 2
    assert heard.changes == 0


async def test_a_user_who_may_not_subscribe_gets_one_warning_and_does_without(
    server: Server, logged: list[EventDict]
) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", "resetchannels")
    broker = Broker(address_of(server.url.replace("redis://", "redis://deaf:pw@")))
    heard = Listening(broker)
    await heard.listener.tick()
    await aeventually(lambda: any("NOPERM" in str(line.get("error")) for line in logged))
    await heard.listener.tick()
    assert not heard.state.listening
    assert [line["what"] for line in logged if line["event"] == "trouble"] == ["listening"]
    await broker.close()
    with server.client() as client:
        client.execute_command("ACL", "DELUSER", "deaf")
