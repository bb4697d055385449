"""The courier, tick by tick: what was decided elsewhere arrives in its queue, once, whatever happens on the way."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest
from structlog.typing import EventDict

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.broker import ANSWER_TIMEOUT, Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import LANES, AppKeys, QueueKeys, queue_keys
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import Command
from fennelq.broker.verbs.runs import Settled
from fennelq.broker.verbs.schedules import Claim, Seen
from fennelq.model.job import Status
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.outcome import succeeded
from fennelq.model.schedule import WireSchedule
from fennelq.model.wire import AnyWireJob
from fennelq.worker.bus import HandOverWaits, MessagesArrive
from fennelq.worker.duties.courier import Courier
from fennelq.worker.state import State
from tests.kit.server import Server
from tests.worker.states import NOWHERE, state_of

KEYS = AppKeys("shop")
LONGEST = 60.0


def a_schedule(name: str = "report", **given: Any) -> WireSchedule:
    fields: dict[str, Any] = {"task": "shop:report", "queue": "mail", "args": b"[[],{}]", "every_ms": 1000}
    return WireSchedule(name=name, **fields | given)


async def decided(broker: Broker, schedule: WireSchedule, *dues: int) -> list[AnyWireJob]:
    """The jobs of these ticks, on their way."""
    jobs = [verbs.schedules.job_of(schedule, due) for due in dues]
    await broker.run(verbs.schedules.schedule(KEYS, "put", schedule.name, schedule.to_wire(), 1))
    for page in [jobs[i : i + 1000] for i in range(0, len(jobs), 1000)]:
        seen = Seen(schedule.name, schedule.to_wire(), 1, await last_job(broker, schedule.name), False, b"")
        assert await broker.run(verbs.schedules.tick(KEYS, Claim(seen, 1, 1, 0, None, "", None, page)))
    return jobs


async def last_job(broker: Broker, name: str) -> str:
    return (await broker.ask(verbs.schedules.state(KEYS, name))).get("last_job", b"").decode()


async def waiting(broker: Broker, queue: str = "mail", lane: str = "s") -> int:
    return await broker.ask(verbs.queues.length(queue_keys("shop", queue), lane))


def on_their_way(server: Server) -> int:
    with server.client() as client:
        number: int = client.hlen(KEYS["out"])
    return number


@pytest.fixture
def courier(broker: Broker) -> Courier:
    return Courier(state_of(broker))


async def test_with_nothing_to_be_handed_over_it_sleeps_until_it_is_woken(courier: Courier) -> None:
    assert await courier.tick() == LONGEST


async def test_a_job_arrives_as_it_was_decided(
    courier: Courier, broker: Broker, mail: QueueKeys, server: Server
) -> None:
    schedule = a_schedule(
        args=b'[[7],{"kind":"long"}]', options=b'{"r":1}', priority="high", max_deliveries=2
    )
    (job,) = await decided(broker, schedule, 5)
    assert await courier.tick() == 0.0
    assert await courier.tick() == LONGEST
    assert (await waiting(broker, lane="s:high"), on_their_way(server)) == (1, 0)
    info = await broker.ask(verbs.jobs.record(mail, job.key))
    assert info is not None
    assert (info.status, info.task, info.arguments) == (Status.SENT, "shop:report", b'[[7],{"kind":"long"}]')
    with server.client() as client:
        record = cast("dict[bytes, bytes]", client.hgetall(mail.record(job.key)))
    assert (record[b"o"], record[b"M"], record[b"L"]) == (b'{"r":1}', b"2", b"86400000")


async def test_a_job_that_is_put_off_waits_for_its_time(
    courier: Courier, broker: Broker, server: Server
) -> None:
    await decided(broker, a_schedule(jitter_ms=1000), 10**13)
    await courier.tick()
    assert await broker.ask(verbs.queues.length(queue_keys("shop", "mail"), "sched")) == 1


async def test_jobs_of_many_queues_arrive_in_one_go_and_their_queues_are_known(
    courier: Courier, broker: Broker, server: Server
) -> None:
    for n in range(5):
        await decided(broker, a_schedule(f"s{n}", queue=f"q{n}"), 1, 2, 3)
    await courier.tick()
    assert [await waiting(broker, f"q{n}") for n in range(5)] == [3] * 5
    assert await broker.ask(verbs.queues.known_queues("shop")) == {f"q{n}" for n in range(5)}


async def test_very_many_jobs_arrive_each_once(courier: Courier, broker: Broker, server: Server) -> None:
    await decided(broker, a_schedule(), *range(1, 3001))
    await courier.tick()
    assert (await waiting(broker), on_their_way(server)) == (3000, 0)


async def test_large_jobs_arrive(courier: Courier, broker: Broker, server: Server) -> None:
    await decided(broker, a_schedule(args=b'[["%s"],{}]' % (b"x" * 700_000)), 1, 2, 3)
    await courier.tick()
    assert (await waiting(broker), on_their_way(server)) == (3, 0)


@pytest.mark.parametrize("ended", [False, True])
async def test_handed_over_again_it_is_the_same_job(
    courier: Courier, broker: Broker, mail: QueueKeys, server: Server, ended: bool
) -> None:
    """As when a courier dies before it can report that the job has arrived."""
    await decided(broker, a_schedule(), 5)
    with server.client() as client:
        before = cast("dict[bytes, bytes]", client.hgetall(KEYS["out"]))
        await courier.tick()
        if ended:
            await run_all(broker, mail)
        client.hset(KEYS["out"], mapping=cast("Any", before))
    await courier.tick()
    assert await waiting(broker) == (0 if ended else 1)
    assert on_their_way(server) == 0


async def run_all(broker: Broker, mail: QueueKeys) -> None:
    lifetimes = Lifetimes(600_000, 600_000)
    lanes = tuple(LANES.values())
    verb = verbs.runs.fetch(mail, consumer="anna", free=100, lanes=lanes, lifetimes=lifetimes)
    settled = [Settled(one, succeeded(b"1", 0)) for one in (await broker.run(verb)).deliveries]
    await broker.run(verbs.runs.finish(mail, settled, lifetimes))


async def test_what_only_a_later_version_can_read_stays_and_holds_up_nothing(
    courier: Courier, broker: Broker, server: Server, logged: list[EventDict]
) -> None:
    await decided(broker, a_schedule(), *range(1, 100))
    with server.client() as client:
        strange = {**orjson.loads(cast("bytes", client.hget(KEYS["out"], "mail:cron.report.1"))), "shards": 4}
        client.hset(KEYS["out"], mapping={"mail:new": orjson.dumps(strange), "mail:junk": b"what?"})
    assert await courier.tick() == 0.0
    assert (await waiting(broker), on_their_way(server)) == (99, 2)
    assert await courier.tick() == LONGEST
    assert [line["what"] for line in logged if line["event"] == "trouble"] == ["hand-over"]


async def test_a_paused_queue_takes_hand_overs_and_leaves_what_is_none_where_it_is(
    courier: Courier, broker: Broker, mail: QueueKeys, server: Server, logged: list[EventDict]
) -> None:
    await decided(broker, a_schedule(), 1, 2)
    await broker.run(verbs.queues.pause(mail, ["enqueue"], "anna", "slow"))
    with server.client() as client:
        plain = orjson.loads(cast("bytes", client.hget(KEYS["out"], "mail:cron.report.1")))
        del plain["keep_ms"]
        client.hset(KEYS["out"], "mail:plain", orjson.dumps({**plain, "key": "plain"}))
    assert await courier.tick() == 0.0
    assert (await waiting(broker), on_their_way(server)) == (2, 1)
    assert await courier.tick() == LONGEST
    assert any("enqueuing is paused" in line["error"] for line in logged if line["event"] == "trouble")
    await broker.run(verbs.queues.resume(mail, ["enqueue"]))
    assert await courier.tick() == 0.0
    assert (await waiting(broker), on_their_way(server)) == (3, 0)


@pytest.mark.audit(skip="the test takes a stream away")
async def test_trouble_with_one_queue_holds_up_no_other_and_loses_nothing(
    courier: Courier, broker: Broker, server: Server, logged: list[EventDict]
) -> None:
    await decided(broker, a_schedule("bad", queue="bad"), 1, 2)
    await decided(broker, a_schedule("good", queue="good"), 1, 2)
    with server.client() as client:
        client.set(queue_keys("shop", "bad")["s"], "what?")
        await courier.tick()
        assert (await waiting(broker, "good"), on_their_way(server)) == (2, 2)
        assert await courier.tick() == LONGEST
        assert any("WRONGTYPE" in line["error"] for line in logged if line["event"] == "trouble")
        client.delete(queue_keys("shop", "bad")["s"])
    await courier.tick()
    # The scripts that failed had got as far as nothing, or as the entry without its record.
    assert on_their_way(server) == 0


@pytest.mark.audit(skip="the test takes a stream away")
async def test_one_job_that_cannot_arrive_holds_up_no_other_of_its_queue(
    courier: Courier, broker: Broker, server: Server
) -> None:
    await decided(broker, a_schedule("high", priority="high"), 1)
    await decided(broker, a_schedule("normal"), *range(1, 30))
    with server.client() as client:
        client.set(queue_keys("shop", "mail")["s:high"], "what?")
        await courier.tick()
    assert (await waiting(broker), on_their_way(server)) == (29, 1)


async def test_over_maxmemory_what_cannot_arrive_yet_stays_on_its_way(
    courier: Courier, broker: Broker, server: Server
) -> None:
    await decided(broker, a_schedule(), *range(1, 30))
    with server.configured(maxmemory="1"):
        with pytest.raises(ReplyError, match="OOM"):
            await courier.tick()
        assert on_their_way(server) == 29
    await courier.tick()
    assert (await waiting(broker), on_their_way(server)) == (29, 0)


async def test_entries_that_it_does_not_carry_are_counted_and_stay(broker: Broker, server: Server) -> None:
    state = state_of(broker)
    courier = Courier(state)
    foreign = {f"part/{n}": b"1" for n in range(200)}
    in_outbox(server, KEYS, **foreign, **{"mail:junk": b"what?"})
    assert await courier.tick() == LONGEST
    assert state.left_in_outbox == 201
    in_outbox(server, KEYS, **a_hand_over("1"))
    assert await courier.tick() == 0.0
    assert state.left_in_outbox == on_their_way(server) == 201
    with server.client() as client:
        client.delete(KEYS["out"])
    assert await courier.tick() == LONGEST
    assert state.left_in_outbox == 0


# Outboxes of queues


def in_outbox(server: Server, box: AppKeys | QueueKeys, **jobs: bytes) -> None:
    with server.client() as client:
        client.hset(box["out"], mapping=cast("Any", jobs))


def a_hand_over(key: str, queue: str = "post") -> dict[str, bytes]:
    """What a script writes to its outbox so that this job is made in another queue."""
    fields = {"queue": queue, "key": key, "task": "shop:report", "args": "[[],{}]"}
    return {f"{queue}:{key}": orjson.dumps(fields)}


def left_in(server: Server, box: AppKeys | QueueKeys) -> set[str]:
    with server.client() as client:
        return {field.decode() for field in cast("list[bytes]", client.hkeys(box["out"]))}


@pytest.fixture
def carrying(broker: Broker, mail: QueueKeys) -> State:
    """The state of an executor that serves `mail` and `post`."""
    return state_of(broker, mail, queue_keys("shop", "post"))


@pytest.fixture
def carrier(carrying: State) -> Courier:
    """The courier of an executor that serves `mail` and `post`."""
    return Courier(carrying)


async def test_a_job_in_the_outbox_of_a_queue_arrives(
    carrier: Courier, broker: Broker, mail: QueueKeys, server: Server
) -> None:
    in_outbox(server, mail, **a_hand_over("1"), **a_hand_over("2", "mail"))
    assert await carrier.tick() == 0.0
    assert await carrier.tick() == LONGEST
    assert [await waiting(broker, queue) for queue in ("post", "mail")] == [1, 1]
    assert left_in(server, mail) == set()


async def test_an_outbox_is_read_again_when_it_is_announced_and_not_before(
    carrier: Courier, carrying: State, broker: Broker, mail: QueueKeys, server: Server
) -> None:
    await carrier.tick()
    in_outbox(server, mail, **a_hand_over("1"))
    assert (await carrier.tick(), await waiting(broker, "post")) == (LONGEST, 0)
    carrying.bus.publish(HandOverWaits("mail"))
    assert carrier.woken.is_set()
    assert (await carrier.tick(), await waiting(broker, "post")) == (0.0, 1)


async def test_all_outboxes_are_read_once_a_minute_and_when_messages_arrive_again(
    carrier: Courier,
    carrying: State,
    broker: Broker,
    mail: QueueKeys,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await carrier.tick()
    in_outbox(server, mail, **a_hand_over("1"))
    later = clock.monotonic() + LONGEST
    monkeypatch.setattr(clock, "monotonic", lambda: later)
    assert (await carrier.tick(), await waiting(broker, "post")) == (0.0, 1)
    await carrier.tick()
    in_outbox(server, mail, **a_hand_over("2"))
    carrying.bus.publish(MessagesArrive())
    assert (await carrier.tick(), await waiting(broker, "post")) == (0.0, 2)


async def test_what_is_not_a_job_is_left_to_the_part_that_it_is_for(
    carrier: Courier, broker: Broker, mail: QueueKeys, server: Server, logged: list[EventDict]
) -> None:
    in_outbox(server, mail, **{"post:1/2": b"an end"}, **a_hand_over("3"))
    assert await carrier.tick() == 0.0
    assert await carrier.tick() == LONGEST
    assert left_in(server, mail) == {"post:1/2"}
    assert [line for line in logged if line["event"] == "trouble"] == []


async def test_an_outbox_that_cannot_be_read_holds_up_no_other(
    carrier: Courier, broker: Broker, mail: QueueKeys, server: Server, logged: list[EventDict]
) -> None:
    with server.client() as client:
        client.set(mail["out"], "what?")
    in_outbox(server, queue_keys("shop", "post"), **a_hand_over("1"))
    in_outbox(server, KEYS, **a_hand_over("2"))
    assert await carrier.tick() == 0.0
    assert await waiting(broker, "post") == 2
    assert [line["queue"] for line in logged if line["event"] == "trouble"] == ["mail"]
    with server.client() as client:
        client.delete(mail["out"])


async def test_an_outbox_of_a_queue_that_others_serve_is_left_to_them(
    carrier: Courier, carrying: State, broker: Broker, server: Server
) -> None:
    in_outbox(server, queue_keys("shop", "other"), **a_hand_over("1"))
    carrying.bus.publish(HandOverWaits("other"))
    assert (await carrier.tick(), await waiting(broker, "post")) == (LONGEST, 0)


class Unreachable(Broker):
    """Notes the keys that it is asked for. It cannot connect until it is `up`; then they are all empty."""

    def __init__(self) -> None:
        super().__init__(address_of(NOWHERE))
        self.asked: list[str] = []
        self.up = False

    async def ask(self, command: Command[Any], within: float = ANSWER_TIMEOUT) -> Any:
        self.asked.append(str(command.words[1]))
        return command.read([b"0", []]) if self.up else await super().ask(command, within)


async def test_an_outage_ends_the_tick_without_a_line_for_each_queue(logged: list[EventDict]) -> None:
    broker, queues = Unreachable(), [queue_keys("shop", f"q{n}") for n in range(50)]
    courier = Courier(state_of(broker, *queues))
    with pytest.raises(ConnectionRefusedError):
        await courier.tick()
    assert logged == []
    broker.asked, broker.up = [], True
    await courier.tick()
    assert sorted(broker.asked) == sorted([KEYS["out"], *(keys["out"] for keys in queues)])
    await broker.close()
