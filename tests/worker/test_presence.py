"""Presence: an executor publishes its own facts, reads few, and learns how many colleagues share its duties."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import redis

import fennelq
from fennelq.broker import verbs
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import AppKeys, queue_keys
from fennelq.executors import recent_of
from fennelq.model import outcome
from fennelq.model.job import Delivery, JobFailure
from fennelq.model.routing import Routing
from fennelq.worker.bus import ExecutorEnding, QueuesDiscovered
from fennelq.worker.duties.presence import Presence
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.running.held import Held
from fennelq.worker.state import State
from fennelq.worker.vitals import Blockage
from tests.kit.server import Server
from tests.worker.states import published, state_of

KEYS = AppKeys("shop")
LEASE = 60.0
MAIL = queue_keys("shop", "mail")


@pytest.fixture
def redis_client(server: Server) -> Any:
    with server.client() as client:
        yield client


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of this process, which stands until a test moves it."""
    moment = [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: moment[0])
    return moment


def state_named(broker: Broker, name: str = "anna", **settings: Any) -> State:
    given: dict[str, Any] = {"default_queue": "mail", "lease": LEASE, **settings}
    return state_of(broker, MAIL, config=ExecutorConfig(name=name), **given)


async def present(broker: Broker, *names: str, host: str = "box") -> None:
    """These executors are alive now."""
    facts = orjson.dumps({"host": host})
    for name in names:
        await broker.run(verbs.executors.present(KEYS, name, facts, recent_of(LEASE)))


# What it reads


class Counted:
    """A broker whose received bytes are counted."""

    def __init__(self, broker: Broker, client: Any) -> None:
        self.broker, self._client = broker, client

    async def bytes_read(self, state: State, duty: Presence) -> int:
        """The bytes that the server sends for one tick of the duty."""
        del state
        before = self.sent()
        await duty.tick()
        return self.sent() - before

    def sent(self) -> int:
        """The bytes that the server has sent, without those for this question."""
        info = self._client.info("stats")
        return int(info["total_net_output_bytes"])


@pytest.fixture
async def counted(server: Server, redis_client: Any) -> AsyncIterator[Counted]:
    broker = Broker(address_of(server.url))
    yield Counted(broker, redis_client)
    await broker.close()


async def test_what_it_reads_does_not_grow_with_the_number_of_executors(
    counted: Counted, now: list[float]
) -> None:
    state = state_named(counted.broker)
    duty = Presence(state)
    await duty.tick()
    info = counted.sent()
    info = counted.sent() - info  # what the question itself costs
    alone = await counted.bytes_read(state, duty)
    await present(counted.broker, *(f"executor-{n}" for n in range(300)))
    among_many = await counted.bytes_read(state, duty)
    assert state.colleagues == 301
    assert abs(among_many - alone) < 100, (alone, among_many, info)


class Asked:
    """The keys that an executor has read as a whole."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[Any] = []
        self.words: list[Any] = []
        """The first words of all its commands."""
        self._ask = broker.ask
        monkeypatch.setattr(broker, "ask", self._noted)

    async def _noted(self, command: Any, *args: Any) -> Any:
        self.words.append(command.words[0])
        if command.words[0] in {"HGETALL", "SMEMBERS", "SSCAN"}:
            self.keys.append(command.words[1])
        return await self._ask(command, *args)


FACTS = verbs.executors.known_executors("shop").words[1]
QUEUES = verbs.queues.known_queues("shop").words[1]


async def test_one_executor_of_the_app_reads_the_facts_of_all_every_15_seconds(
    broker: Broker, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To warn of queues that no executor serves."""
    asked = Asked(broker, monkeypatch)
    duties = [Presence(state_named(broker, name)) for name in ("anna", "berta", "clara")]
    for _ in range(30):
        for duty in duties:
            await duty.tick()
        now[0] += 1.0
    assert asked.keys.count(FACTS) == 2


async def test_when_the_watcher_has_left_another_executor_watches(
    broker: Broker, now: list[float], redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the names of all queues at once, although it has not needed them so far."""
    await present(broker, "berta")
    state = state_named(broker)
    state.wanted = Routing.parse("mail")
    discovered, asked = published(state, QueuesDiscovered), Asked(broker, monkeypatch)
    duty = Presence(state)
    await duty.tick()
    assert asked.keys == []
    left_ms = redis_client.pttl(KEYS["watcher"])
    assert 0 < left_ms <= recent_of(LEASE)
    redis_client.delete(KEYS["watcher"])  # its time is over
    now[0] += 1
    await duty.tick()
    assert sorted(asked.keys) == sorted([FACTS, QUEUES])
    assert [fact.names for fact in discovered] == [{"mail"}]


@pytest.mark.parametrize(
    ("queues", "watches", "reads"),
    [("mail", False, []), ("mail", True, [QUEUES]), (None, False, [QUEUES]), ("mail.*", False, [QUEUES])],
)
async def test_an_executor_of_fixed_queues_reads_the_names_of_all_queues_only_if_it_watches(
    broker: Broker,
    now: list[float],
    monkeypatch: pytest.MonkeyPatch,
    queues: str | None,
    watches: bool,
    reads: list[str],
) -> None:
    if not watches:
        await present(broker, "berta")  # she watches
    state = state_named(broker)
    state.wanted = Routing.parse(queues)
    discovered, duty = published(state, QueuesDiscovered), Presence(state)
    asked = Asked(broker, monkeypatch)
    await duty.tick()
    assert [key for key in asked.keys if key != FACTS] == reads
    assert len(discovered) == len(reads)
    asked.keys.clear()
    now[0] += 1
    await duty.tick()
    assert [key for key in asked.keys if key != FACTS] == [], "it has not read them again"


async def test_an_executor_of_fixed_queues_notes_its_own(
    broker: Broker, now: list[float], redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await present(broker, "berta")  # she watches
    state = state_named(broker)
    state.wanted = Routing.parse("mail,reports")
    state.serve(state.wanted)
    duty = Presence(state)
    asked = Asked(broker, monkeypatch)
    await duty.tick()
    await duty.tick()
    assert asked.words == ["SADD", "SADD"], "once: its queues, and the app"
    assert await broker.ask(verbs.queues.known_queues("shop")) == {"mail", "reports"}
    assert await broker.ask(verbs.queues.known_apps()) == (["shop"], True)
    redis_client.delete(KEYS["queues"])
    now[0] += 1
    await duty.tick()
    assert await broker.ask(verbs.queues.known_queues("shop")) == {"mail", "reports"}


async def test_the_known_queues_are_read_when_their_number_has_changed(
    broker: Broker, now: list[float]
) -> None:
    state = state_named(broker)
    state.wanted = Routing.parse(None)
    discovered, duty = published(state, QueuesDiscovered), Presence(state)
    await duty.tick()
    await duty.tick()
    assert len(discovered) == 1
    await broker.ask(verbs.queues.note_queues("shop", ["brand.new"]))
    now[0] += 1
    await duty.tick()
    assert [len(fact.names) for fact in discovered] == [1, 2]
    now[0] += 60
    await duty.tick()
    assert len(discovered) == 3, "in case one has disappeared and another one has appeared"


# What it learns


async def test_it_learns_how_many_executors_are_alive(broker: Broker, redis_client: Any) -> None:
    state = state_named(broker)
    await present(broker, "berta", "clara")
    await Presence(state).tick()
    assert state.colleagues == 3
    redis_client.zadd(KEYS["alive"], {"berta": 1})  # silent for a long time
    await Presence(state).tick()
    assert state.colleagues == 2


async def test_it_learns_how_others_have_died(broker: Broker) -> None:
    state = state_named(broker)
    await broker.run(verbs.executors.died(KEYS, "berta", "SIGKILL", recent_of(LEASE)))
    await Presence(state).tick()
    assert (state.deaths, state.colleagues) == ({"berta": "SIGKILL"}, 1)


@pytest.mark.parametrize(
    ("queues", "facts"),
    [
        ("mail", {"queues": ["mail"]}),
        (None, {"queues": ["mail"], "every_queue": True}),
        ("mail*", {"queues": ["mail"], "patterns": ["mail*"]}),
    ],
)
async def test_its_facts_say_which_queues_it_serves(
    broker: Broker, queues: str | None, facts: dict[str, object]
) -> None:
    state = state_named(broker)
    state.wanted = Routing.parse(queues)
    await Presence(state).tick()
    published = orjson.loads((await broker.ask(verbs.executors.known_executors("shop")))["anna"])
    names = ("queues", "every_queue", "patterns", "further_queues")
    assert {name: published[name] for name in names if name in published} == facts


async def test_its_facts_name_its_version(broker: Broker) -> None:
    await Presence(state_named(broker)).tick()
    facts = orjson.loads((await broker.ask(verbs.executors.known_executors("shop")))["anna"])
    assert facts["version"] == fennelq.__version__


async def test_its_facts_count_the_slots_that_are_taken_and_those_that_are_stuck(broker: Broker) -> None:
    state = state_named(broker)
    state.slots.take()
    state.slots.take()
    state.slots.note_stuck()
    await Presence(state).tick()
    facts = orjson.loads((await broker.ask(verbs.executors.known_executors("shop")))["anna"])
    assert (facts["running"], facts["stuck"], facts["concurrency"]) == (2, 1, state.slots.count)


async def test_its_facts_name_twenty_of_a_thousand_queues(broker: Broker) -> None:
    state = state_named(broker)
    state.wanted = Routing.parse("q*")
    state.serve(Routing({f"q{n:04}": 1 for n in range(1000)}))
    await Presence(state).tick()
    facts = orjson.loads((await broker.ask(verbs.executors.known_executors("shop")))["anna"])
    assert (len(facts["queues"]), facts["further_queues"], facts["patterns"]) == (20, 980, ["q*"])


async def test_its_facts_name_every_queue_that_was_named_one_by_one(broker: Broker) -> None:
    """Others find out from here that an executor serves them."""
    named = [f"z{n:02}" for n in range(30)]
    state = state_named(broker)
    state.wanted = Routing.parse(",".join(["q*", *named]))
    state.serve(state.wanted.including(f"q{n:03}" for n in range(100)))
    await Presence(state).tick()
    facts = orjson.loads((await broker.ask(verbs.executors.known_executors("shop")))["anna"])
    assert facts["queues"] == [*named, *(f"q{n:03}" for n in range(20))]
    assert facts["further_queues"] == 80


# Intervals that colleagues share


@pytest.mark.parametrize(
    ("colleagues", "interval", "stretched"),
    [
        (1, 5.0, 5.0),
        (3, 5.0, 5.0),
        (6, 5.0, 10.0),
        (30, 5.0, 50.0),
        (36, 5.0, 60.0),
        (10_000, 5.0, 60.0),
        (10_000, 90.0, 90.0),
    ],
)
async def test_an_interval_grows_with_the_number_of_colleagues_and_never_beyond_a_lease(
    broker: Broker, colleagues: int, interval: float, stretched: float
) -> None:
    state = state_named(broker)
    state.note_colleagues(colleagues)
    assert state.stretched(interval) == stretched


async def test_after_a_rolling_restart_duties_are_shared_by_those_that_are_left(
    broker: Broker, redis_client: redis.Redis
) -> None:
    """200 executors, of which 190 leave in order."""
    state, duty = state_named(broker), None
    others = [f"executor-{n}" for n in range(199)]
    await present(broker, *others)
    duty = Presence(state)
    await duty.tick()
    assert state.stretched(5.0) == LEASE
    await broker.run(verbs.executors.absent(KEYS, others[:190]))
    await duty.tick()
    assert state.colleagues == 10
    assert state.stretched(5.0) == pytest.approx(5.0 * 10 / 3)


@pytest.mark.parametrize(("leases", "colleagues"), [(1.9, 200), (2.1, 10)])
async def test_executors_that_were_killed_count_for_two_leases(
    broker: Broker, redis_client: Any, leases: float, colleagues: int
) -> None:
    state = state_named(broker)
    await present(broker, *(f"executor-{n}" for n in range(199)))
    now_ms = await broker.ask(verbs.server.now())
    silent = dict.fromkeys((f"executor-{n}" for n in range(190)), now_ms - leases * LEASE * 1000)
    redis_client.zadd(KEYS["alive"], silent)
    await Presence(state).tick()
    assert state.colleagues == colleagues


@pytest.mark.parametrize(("executors", "beats"), [(2, 1), (1000, 1), (2000, 2), (100_000, 8)])
async def test_from_a_thousand_executors_on_each_reports_less_often_but_once_in_two_leases(
    broker: Broker, server: Server, executors: int, beats: int
) -> None:
    now_ms = await broker.ask(verbs.server.now())
    with server.client() as client:
        for first in range(1, executors, 10_000):
            names = range(first, min(first + 10_000, executors))
            client.zadd(KEYS["alive"], {f"executor-{n}": now_ms for n in names})
    state = state_named(broker)
    duty = Presence(state)
    await duty.tick()
    assert await duty.tick() == beats * LEASE / 4
    assert state.colleagues == executors


async def test_in_a_very_large_fleet_executors_count_for_two_of_their_long_intervals(
    broker: Broker, redis_client: Any
) -> None:
    state = state_named(broker)
    state.note_colleagues(100_000)
    now_ms = await broker.ask(verbs.server.now())
    redis_client.zadd(
        KEYS["alive"], {"bert": now_ms - 3.9 * LEASE * 1000, "carl": now_ms - 4.1 * LEASE * 1000}
    )
    await Presence(state).tick()
    assert state.colleagues == 2


# How it is


async def facts_of(broker: Broker) -> Any:
    return orjson.loads((await broker.ask(verbs.executors.known_executors("shop")))["anna"])


async def test_its_facts_have_its_memory_and_the_worst_lag_since_the_last_ones(broker: Broker) -> None:
    state = state_named(broker)
    duty = Presence(state)
    state.vitals.note_lag(0.2)
    state.vitals.note_lag(0.5)
    state.vitals.note_lag(0.1)
    await duty.tick()
    facts = await facts_of(broker)
    assert facts["lag"] == 0.5
    assert facts["rss"] > 1_000_000
    await duty.tick()
    assert (await facts_of(broker))["lag"] == 0.0


async def test_its_facts_have_what_blocks_its_loop_and_what_has_blocked_it(
    broker: Broker, now: list[float]
) -> None:
    state = state_named(broker)
    duty = Presence(state)
    await duty.tick()
    assert "blocked" not in await facts_of(broker)
    state.vitals.note_blocked(Blockage("x" * 300 + "tasks.py:7 in f", "j" * 300, 1.25), stand_in=True)
    await duty.tick()
    blocked = (await facts_of(broker))["blocked"]
    assert blocked["at"].endswith("xtasks.py:7 in f")
    assert (len(blocked["at"]), len(blocked["job"]), blocked["seconds"]) == (200, 200, 1.2)
    assert "ago" not in blocked
    state.vitals.note_works()
    now[0] += 599
    await duty.tick()
    assert (await facts_of(broker))["blocked"]["ago"] == 599
    now[0] += 2
    await duty.tick()
    assert "blocked" not in await facts_of(broker)


async def test_it_starts_until_redis_has_replied_to_its_first_read(broker: Broker) -> None:
    state = state_named(broker)
    duty = Presence(state)
    await duty.tick()
    assert (await facts_of(broker))["state"] == "starting"
    state.note_connected(True)
    assert duty.woken.is_set()
    await duty.tick()
    assert "state" not in await facts_of(broker)
    state.note_connected(False)
    duty.woken.clear()
    state.note_connected(True)
    assert not duty.woken.is_set(), "only once: the executors of a fleet must not report all at once"


@pytest.mark.parametrize("how", ["stopping", "draining"])
async def test_it_reports_at_once_that_it_ends(broker: Broker, how: str) -> None:
    state = state_named(broker)
    duty = Presence(state)
    state.note_connected(True)
    duty.woken.clear()
    state.note_ending(how)
    state.bus.publish(ExecutorEnding())
    assert duty.woken.is_set()
    await duty.tick()
    assert (await facts_of(broker))["state"] == how


async def test_its_facts_have_the_unsettled_outcomes_and_the_longest_run(
    broker: Broker, now: list[float]
) -> None:
    state = state_named(broker)
    duty = Presence(state)
    task: Any = asyncio.current_task()
    every = [
        Held(Delivery("mail", "s", f"{number}-1", str(number), "t" * 300, b"", b"", 0, 1, 1, 1))
        for number in range(4)
    ]
    for held, begun in zip(every, (0.0, 999.5, 990.0, 980.0), strict=True):
        state.held.by_token[held.delivery.token] = held
        held.task, held.begun = task, begun
    every[-1].outcome = outcome.died(JobFailure("E", "m"), 0, 0)
    await duty.tick()
    facts = await facts_of(broker)
    assert facts["unsettled"] == 1
    assert facts["longest"] == {"job": "mail:2", "task": "t" * 200, "seconds": 10.0}


async def test_the_facts_of_2000_executors_are_less_than_a_megabyte_per_second(
    broker: Broker, server: Server, now: list[float]
) -> None:
    """Even if each of them has a blocked loop, a long run and twenty queues."""
    state = state_of(broker, MAIL, config=ExecutorConfig(name="anna"), default_queue="mail")
    state.wanted = Routing.parse(None)
    state.serve(Routing({f"queue-number-{n:04}": 1 for n in range(100)}))
    state.note_colleagues(2000)
    state.vitals.note_blocked(Blockage("x" * 300, "j" * 300, 1.25), stand_in=True)
    now_ms = await broker.ask(verbs.server.now())
    with server.client() as client:
        client.zadd(KEYS["alive"], {f"executor-{n}": now_ms for n in range(1999)})
    duty = Presence(state)
    interval = await duty.tick()
    size = len((await broker.ask(verbs.executors.known_executors("shop")))["anna"])
    assert size * 2000 / interval < 1_000_000, (size, interval)


async def test_an_executor_without_troubles_reports_little(broker: Broker) -> None:
    state = state_named(broker)
    state.note_connected(True)
    await Presence(state).tick()
    assert len((await broker.ask(verbs.executors.known_executors("shop")))["anna"]) < 350
