"""The listener: messages arrive at once, and what was published while the connection was away is looked up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, cast

import pytest
from structlog.typing import EventDict

from fennelq.broker import verbs
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import AppKeys, QueueKeys, queue_keys
from fennelq.broker.link import Link
from fennelq.model.routing import Routing
from fennelq.worker.bus import (
    BellConnected,
    CancelRequested,
    HandOverWaits,
    JobArrived,
    JobDue,
    MessagesArrive,
    QuestionAsked,
    RoutingChanged,
    SchedulesChanged,
)
from fennelq.worker.duties.listener import Listener
from fennelq.worker.running.held import Held
from tests.broker.desk import Desk, a_job
from tests.kit.server import Server
from tests.kit.waiting import aeventually
from tests.worker.states import is_heard, published, state_of

KEYS = AppKeys("shop")


class Listening:
    """The listener of the executor `anna`, and what it publishes."""

    def __init__(self, broker: Broker, *queues: QueueKeys) -> None:
        self.state = state_of(broker, *queues)
        self.listener = Listener(self.state)
        self.facts: list[Any] = []
        kinds = (
            BellConnected,
            CancelRequested,
            HandOverWaits,
            JobArrived,
            JobDue,
            MessagesArrive,
            SchedulesChanged,
        )
        for kind in kinds:
            self.state.bus.subscribe(kind, self.facts.append)

    def connected(self) -> set[str]:
        """The queues about which it has published that messages arrive."""
        return {queue for fact in self.facts if isinstance(fact, BellConnected) for queue in fact.queues}

    def serve(self, *queues: str) -> None:
        """Serve these queues from now on, as the consumer does it."""
        left = self.state.routing.weights.keys() - set(queues)
        self.state.serve(Routing(dict.fromkeys(queues, 1)))
        self.state.bus.publish(RoutingChanged(frozenset(left)))

    async def hears(self, *queues: str) -> None:
        """Tick, and wait until the messages about these queues and no others arrive."""
        await self.listener.tick()
        await aeventually(lambda: self.state.listening and self.state.bells == set(queues))

    async def eventually(self, *facts: object) -> None:
        """Returns when it has published these facts, and no others."""
        await aeventually(lambda: self.facts == [*facts])


@pytest.fixture
async def heard(broker: Broker, mail: QueueKeys) -> Listening:
    """A listener that listens, and has published already that everything has to be looked up."""
    heard = Listening(broker, mail)
    await heard.hears("mail")
    heard.facts.clear()
    return heard


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of this process, which stands until a test moves it."""
    moment = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: moment[0])
    return moment


def publish(server: Server, channel: str, text: str) -> None:
    with server.client() as client:
        assert client.publish(channel, text) == 1


def ring(server: Server, text: str, queue: str = "mail") -> int:
    """Publish a text on a bell of anna; returns how many have received it."""
    with server.client() as client:
        bell = queue_keys("shop", queue).bell("anna")
        return int(cast("Any", client.execute_command("SPUBLISH", bell, text)))


async def test_an_executor_that_begins_to_listen_looks_everything_up(broker: Broker, mail: QueueKeys) -> None:
    heard = Listening(broker, mail, queue_keys("shop", "other"))
    assert not heard.state.listening
    await heard.hears("mail", "other")
    everything = [SchedulesChanged(), MessagesArrive()]
    assert [fact for fact in heard.facts if not isinstance(fact, BellConnected)] == everything
    assert heard.connected() == {"mail", "other"}


async def test_subscriptions_that_are_confirmed_together_are_published_together(broker: Broker) -> None:
    queues = [queue_keys("shop", f"q{number}") for number in range(1200)]
    heard = Listening(broker, *queues)
    await heard.hears(*(keys.queue for keys in queues))
    assert heard.connected() == {keys.queue for keys in queues}
    assert len([fact for fact in heard.facts if isinstance(fact, BellConnected)]) < 120


@pytest.mark.audit(unfinished=True)
async def test_it_hears_that_a_job_has_arrived(heard: Listening, desk: Desk) -> None:
    desk.fetch("anna", sleeps=True)
    desk.enqueue(a_job("1", priority="low"))
    await heard.eventually(JobArrived("mail", "s:low"))
    desk.enqueue(a_job("2"))
    desk.fetch("anna", sleeps=True)
    desk.enqueue(a_job("3"))
    await heard.eventually(JobArrived("mail", "s:low"), JobArrived("mail", "s"))


async def test_it_hears_that_something_is_due_sooner(heard: Listening, desk: Desk) -> None:
    desk.fetch("anna", sleeps=True)
    desk.enqueue(a_job("1", delay_ms=2500))
    desk.enqueue(a_job("2", delay_ms=5000))
    desk.enqueue(a_job("3", delay_ms=1000))
    await heard.eventually(JobDue(2.5, "mail", announced=True), JobDue(1.0, "mail", announced=True))


async def test_it_hears_that_a_schedule_has_changed(heard: Listening, broker: Broker) -> None:
    await broker.run(verbs.schedules.schedule(KEYS, "put", "report", b"{}", 1))
    await heard.eventually(SchedulesChanged())


@pytest.mark.audit(unfinished=True)
@pytest.mark.parametrize("why", ["no longer needed", "Müller: „stop it“ — 取消"])
async def test_it_hears_that_a_run_is_to_stop_and_why(heard: Listening, desk: Desk, why: str) -> None:
    (delivery,) = desk.executing(a_job(priority="high"))
    desk.cancel("1", why=why)
    await heard.eventually(CancelRequested(("mail", "s:high", delivery.entry), why))


@pytest.mark.audit(unfinished=True)
async def test_of_a_queue_that_it_left_it_hears_requests_while_it_has_a_job_of_it(
    heard: Listening, desk: Desk, server: Server
) -> None:
    (delivery,) = desk.executing(a_job())
    heard.state.held.by_token[delivery.token] = Held(delivery)
    heard.serve("other")
    await heard.hears("other")
    heard.facts.clear()
    desk.cancel("1")
    request = CancelRequested(delivery.token, "cancelled")
    await heard.eventually(request)
    # Also over a new connection.
    with server.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    await aeventually(lambda: not heard.state.listening)
    await heard.hears("other")
    await aeventually(lambda: {"mail", "other"} <= heard.connected())
    heard.facts.clear()
    desk.cancel("1")
    await heard.eventually(request)
    # It has ended.
    del heard.state.held.by_token[delivery.token]
    await heard.listener.tick()
    await aeventually(lambda: ring(server, "out", "mail") == 0)


async def test_a_queue_that_it_serves_again_is_heard_again(
    heard: Listening, desk: Desk, server: Server
) -> None:
    (delivery,) = desk.executing(a_job())
    heard.state.held.by_token[delivery.token] = Held(delivery)
    heard.serve("other")
    await heard.hears("other")
    heard.serve("mail", "other")
    await heard.hears("mail", "other")
    assert ring(server, "out", "mail") == 1
    heard.state.held.by_token.clear()
    await heard.listener.tick()
    await heard.listener.tick()
    assert ring(server, "out", "mail") == 1
    desk.finish([delivery])


async def test_it_hears_whose_outbox_has_something_in_it(heard: Listening, server: Server) -> None:
    assert ring(server, "out") == 1
    await heard.eventually(HandOverWaits("mail"))
    publish(server, KEYS["wake"], "out")
    await heard.eventually(HandOverWaits("mail"), HandOverWaits(None))


@pytest.mark.parametrize("text", ["", "soon", "due", "due soon", "cron2", "stop", "stop s 1-0", "\x00"])
async def test_what_it_does_not_understand_it_ignores(heard: Listening, server: Server, text: str) -> None:
    publish(server, KEYS["wake"], text)
    assert ring(server, text) == 1
    publish(server, KEYS["wake"], "cron")
    await aeventually(lambda: SchedulesChanged() in heard.facts)
    assert ring(server, "out") == 1
    await aeventually(lambda: HandOverWaits("mail") in heard.facts)
    assert len(heard.facts) == 2
    assert heard.state.listening


async def test_a_message_that_is_not_utf_8_is_ignored(heard: Listening, server: Server) -> None:
    with server.client() as client:
        client.execute_command("SPUBLISH", queue_keys("shop", "mail").bell("anna"), b"look \xff")
    assert ring(server, "look s") == 1
    await heard.eventually(JobArrived("mail", "s"))
    assert heard.state.listening


async def test_other_apps_queues_and_executors_are_not_heard(heard: Listening, server: Server) -> None:
    assert heard.state.name == "anna"
    with server.client() as client:
        for other in ("fq:{shop2}:wake", "fq:{ashop}:wake", "fq:{shop}:wake2"):
            assert client.publish(other, "cron") == 0
        for other in ("fq:{shop/mail}:bell:berta", "fq:{shop/other}:bell:anna", "fq:{shop2/mail}:bell:anna"):
            assert client.execute_command("SPUBLISH", other, "look s") == 0


async def test_a_connection_that_was_lost_is_made_again_and_everything_looked_up(
    heard: Listening, server: Server
) -> None:
    with server.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    await aeventually(lambda: heard.listener.woken.is_set())
    assert (heard.state.listening, heard.state.bells) == (False, set())
    await heard.hears("mail")
    assert sorted(heard.facts, key=str) == [
        BellConnected(["mail"]),
        MessagesArrive(),
        SchedulesChanged(),
    ]
    heard.facts.clear()
    assert ring(server, "look s") == 1
    await heard.eventually(JobArrived("mail", "s"))


async def test_while_it_listens_a_tick_does_nothing(heard: Listening, server: Server) -> None:
    await aeventually(lambda: is_heard(server, "anna", ""))
    with server.client() as client:
        before = calls(client.info("commandstats"), "subscribe", "ssubscribe", "sunsubscribe")
        for _ in range(3):
            await heard.listener.tick()
        assert ring(server, "out") == 1
        await heard.eventually(HandOverWaits("mail"))
        assert calls(client.info("commandstats"), "subscribe", "ssubscribe", "sunsubscribe") == before


def calls(stats: Any, *commands: str) -> list[int]:
    """How often a server has run these commands."""
    return [int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"]) for command in commands]


async def test_it_subscribes_to_a_queue_that_appears_and_leaves_one_that_disappears(
    heard: Listening, server: Server
) -> None:
    heard.serve("mail", "other")
    assert heard.listener.woken.is_set()
    await heard.hears("mail", "other")
    assert heard.facts == [BellConnected(["other"])]
    assert [ring(server, "look s", queue) for queue in ("mail", "other")] == [1, 1]
    await heard.eventually(BellConnected(["other"]), JobArrived("mail", "s"), JobArrived("other", "s"))
    heard.serve("other")
    assert heard.state.bells == {"other"}
    await aeventually(lambda: ring(server, "look s", "mail") == 0)
    heard.facts.clear()
    assert ring(server, "look s", "other") == 1
    await heard.eventually(JobArrived("other", "s"))


@pytest.mark.parametrize("given", [[], ["mail"]])
async def test_the_queues_without_messages_are_known(
    broker: Broker, mail: QueueKeys, given: Iterable[str]
) -> None:
    """Until then their messages do not arrive, so the executor must not sleep there."""
    heard = Listening(broker, mail)
    heard.state.note_heard(given)
    assert heard.state.hears_all == bool(given)
    assert heard.state.sleeps_at("mail") == bool(given)


async def test_a_subscription_that_the_server_ends_is_made_again(heard: Listening) -> None:
    """As on Redis Cluster, when the slot of a queue moves to another server."""
    bell = queue_keys("shop", "mail").bell("anna").encode()
    heard.listener._on_message([b"sunsubscribe", bell, 0])
    assert (heard.state.bells, heard.listener.woken.is_set()) == (set(), True)
    await heard.hears("mail")
    assert heard.facts == [BellConnected(["mail"])]


@pytest.fixture
async def deaf(server: Server, mail: QueueKeys) -> AsyncIterator[Listening]:
    """The listener of a user of Redis who may not subscribe."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "+@all", "resetchannels")
        broker = Broker(address_of(server.url.replace("redis://", "redis://deaf:pw@")))
        yield Listening(broker, mail)
        await broker.close()
        client.execute_command("ACL", "DELUSER", "deaf")


async def refused(deaf: Listening, logged: list[EventDict]) -> None:
    """Tick; returns when the server has refused."""
    await deaf.listener.tick()
    await aeventually(lambda: any("NOPERM" in str(line.get("error")) for line in logged))


async def test_a_user_who_may_not_subscribe_gets_one_warning_and_does_without(
    deaf: Listening, server: Server, now: list[float], logged: list[EventDict]
) -> None:
    await refused(deaf, logged)
    await deaf.listener.tick()
    await deaf.state.broker.ask(verbs.server.now())
    assert (deaf.state.listening, deaf.state.hears_all) == (False, False)
    assert [line["what"] for line in logged if line["event"] == "trouble"] == ["listening"]

    # The permissions are corrected: the next attempt subscribes, without a new connection.
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "deaf", "allchannels")
    now[0] += 30.0
    await aeventually(lambda: ticked_and_heard(deaf))
    assert deaf.state.bells == {"mail"}


async def test_subscriptions_that_were_refused_are_sent_again_every_30_seconds(
    deaf: Listening, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many queues, each attempt is many commands, and as many errors."""
    sent: list[tuple[float, str]] = []
    replies: list[Any] = []
    post, listen = Link.post, Link.listen

    def post_noted(link: Link, words: Any) -> None:
        sent.append((now[0] - 1000, words[0]))
        post(link, words)

    async def listen_noted(link: Link, words: Any, on_message: Any) -> None:
        def on_reply(reply: Any) -> None:
            replies.append(reply)
            on_message(reply)

        sent.append((now[0] - 1000, words[0]))
        await listen(link, words, on_reply)

    monkeypatch.setattr(Link, "post", post_noted)
    monkeypatch.setattr(Link, "listen", listen_noted)
    for _ in range(15):
        await deaf.listener.tick()
        await aeventually(lambda: len(replies) == len(sent))
        now[0] += 5.0
    assert [one for one in sent if one[1] != "PING"] == [
        (moment, word) for moment in (0.0, 5.0, 35.0, 65.0) for word in ("SUBSCRIBE", "SSUBSCRIBE")
    ]


@pytest.fixture
def shut(server: Server) -> Iterator[str]:
    """The URL of a user whose ACL was written for an earlier version: it permits the bells, and no questions."""
    with server.client() as client:
        client.execute_command(
            *("ACL", "SETUSER", "shut", "on", ">pw", "~*", "+@all"),
            *("resetchannels", "&fq:{shop}:wake", "&fq:{shop/*}:bell:*"),
        )
        yield server.url.replace("redis://", "redis://shut:pw@")
        client.execute_command("ACL", "DELUSER", "shut")


async def test_an_acl_that_permits_no_questions_costs_nothing_else(
    shut: str, mail: QueueKeys, server: Server, now: list[float], logged: list[EventDict]
) -> None:
    broker = Broker(address_of(shut))
    heard = Listening(broker, mail)
    await heard.hears("mail")
    await aeventually(lambda: [line for line in logged if line["event"] == "questions_refused"])
    for _ in range(20):
        await heard.listener.tick()
        now[0] += 5.0
    assert ring(server, "look s") == 1
    await aeventually(lambda: JobArrived("mail", "s") in heard.facts)
    assert [line["event"] for line in logged] == ["questions_refused"], "once, and no trouble"
    assert (heard.state.listening, heard.state.bells) == (True, {"mail"})
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shut", "allchannels")
        asked = published(heard.state, QuestionAsked)
        now[0] += 30.0
        await aeventually(lambda: ticked_and_asked(heard, server))
    await aeventually(lambda: asked == [QuestionAsked("stacks 1")])
    await broker.close()


async def ticked_and_asked(heard: Listening, server: Server) -> bool:
    await heard.listener.tick()
    return is_heard(server, "anna", "stacks 1")


async def test_questions_are_heard_again_after_the_connection_was_lost(
    heard: Listening, server: Server
) -> None:
    asked = published(heard.state, QuestionAsked)
    with server.client() as client:
        await aeventually(lambda: ticked_and_asked(heard, server))
        await aeventually(lambda: asked)
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await aeventually(lambda: not heard.state.listening)
        asked.clear()
        await aeventually(lambda: ticked_and_asked(heard, server))
        await aeventually(lambda: asked)


async def ticked_and_heard(heard: Listening) -> bool:
    await heard.listener.tick()
    return heard.state.listening and heard.state.hears_all


def nothing(link: Link, words: object) -> None:
    """Send nothing."""


async def test_a_connection_on_which_the_server_does_not_reply_is_made_again(
    heard: Listening, monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    """TCP notices only after minutes that a connection is dead. Until then, jobs would wake this executor in vain."""
    with monkeypatch.context() as patched:
        patched.setattr(Link, "post", nothing)  # the server gets nothing
        await heard.listener.tick()
        await heard.listener.tick()
    assert heard.state.bells == {"mail"}, "a tick that follows at once waits for the reply"
    now[0] += 2.0
    await heard.hears("mail")
    assert BellConnected(["mail"]) in heard.facts


async def test_a_connection_on_which_the_server_replies_is_kept(
    heard: Listening, server: Server, now: list[float]
) -> None:
    for number in range(3):
        await heard.listener.tick()
        # Redis replies in order, so the reply to the PING has arrived as well.
        assert ring(server, "out") == 1
        await aeventually(lambda: len(heard.facts) == number + 1)  # noqa: B023
        now[0] += 5.0
    assert heard.facts == [HandOverWaits("mail")] * 3
