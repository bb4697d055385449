"""A queue for the tests of verbs: they run verbs on it and read its keys directly."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, Self, TypeVar, cast, get_args

import orjson
import redis
from redis.exceptions import ResponseError

from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import GROUP, LANES, QUARANTINE, STREAMS, AppKeys, QueueKeys, queue_keys
from fennelq.broker.verb import Command, Step, Word, as_is
from fennelq.broker.verbs.queues import Resumed
from fennelq.broker.verbs.runs import Catch, Settled, Sweep
from fennelq.model.job import Delivery, JobFailure
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.outcome import Outcome, died, succeeded
from fennelq.model.pause import QueuePause, QueueSide
from fennelq.model.wire import AnyWireJob
from tests.kit.jobs import sent
from tests.kit.server import Server

A = TypeVar("A")
K = TypeVar("K", QueueKeys, AppKeys)
P = ParamSpec("P")
Reason = Literal["stopped", "unstarted", "stranded"]

APP, QUEUE = "shop", "mail"
LIFETIMES = Lifetimes(record_ms=600_000, failure_ms=3_600_000)
RESULT_MS = 60_000
LEASE_MS = 60_000
FAILURE = JobFailure("ValueError", "no such user", "Traceback …")
READ = tuple(LANES.values())
DONE = succeeded(b"42", RESULT_MS)
DEAD = died(FAILURE, 3, LIFETIMES.failure_ms)


def a_job(key: str = "1", **given: Any) -> AnyWireJob:
    """A call of `welcome`, with the given fields."""
    fields: dict[str, Any] = {"task": "app:welcome", "args": b"[42]"} | given
    return sent(QUEUE, key, **fields)


def some_jobs(number: int, **given: Any) -> list[AnyWireJob]:
    """Jobs 1, 2, 3 …"""
    return [a_job(str(key), **given) for key in range(1, number + 1)]


class Entry(NamedTuple):
    """An entry of a lane."""

    lane: str
    entry: str


class Bench(Generic[K]):
    """A set of keys on a server: tests run verbs on them, and read what these have written."""

    def __init__(self, server: Server, keys: K) -> None:
        self.keys: K = keys
        self.redis = server.client()
        self.broker = BlockingBroker(address_of(server.url))

    def close(self) -> None:
        self.broker.close()
        self.redis.close()

    def do(self, verb: Callable[Concatenate[K, P], Step[A]], *args: P.args, **kwargs: P.kwargs) -> A:
        """Run a verb, or an inspecting command, on these keys: `desk.do(verbs.dead.replay, [entry])`."""
        return self.broker.send_all([verb(self.keys, *args, **kwargs)])[0]


class Desk(Bench[QueueKeys]):
    """A queue of the app `shop`, `mail` if no other is named; everything it reads is text."""

    def __init__(self, server: Server, queue: str = QUEUE) -> None:
        super().__init__(server, queue_keys(APP, queue))

    @classmethod
    @contextmanager
    def opened(cls, server: Server, queue: str = QUEUE) -> Generator[Desk]:
        """`with Desk.opened(server) as desk`: a queue that has had no job yet, so it has no lane."""
        desk = cls(server, queue)
        yield desk
        desk.close()

    def make_lanes(self, *lanes: str) -> None:
        """These lanes (or all) and their groups exist, as after the first job of each."""
        for lane in lanes or STREAMS:
            with suppress(ResponseError):  # BUSYGROUP: it exists.
                self.redis.xgroup_create(self.keys[lane], GROUP, "0", mkstream=True)

    # What a verb does to the server

    @contextmanager
    def as_user(self, server: Server, *denied: str, channels: bool = True) -> Generator[None]:
        """The verbs run as a user who may not use these commands, or may use no channel."""
        with self._as_limited(server, ["+@all", *(f"-{command}" for command in denied)], channels=channels):
            yield

    @contextmanager
    def as_viewer(self, server: Server, *denied: str) -> Generator[None]:
        """The verbs run as a user who may read, and not write, every key; without these commands."""
        rules = ["+@read", "+time", "+evalsha_ro", "+eval_ro", *(f"-{command}" for command in denied)]
        with self._as_limited(server, rules):
            cast("Any", self.redis).execute_command("ACL", "SETUSER", "limited", "resetkeys", "%R~*")
            yield

    @contextmanager
    def _as_limited(self, server: Server, rules: Sequence[str], *, channels: bool = True) -> Generator[None]:
        self.redis.acl_setuser(
            "limited",
            enabled=True,
            passwords=["+secret"],
            keys=["*"],
            channels=["*"] if channels else [],
            commands=rules,
            reset_channels=not channels,
        )
        usual, self.broker = (
            self.broker,
            BlockingBroker(address_of(server.url.replace("://", "://limited:secret@"))),
        )
        try:
            yield
        finally:
            self.broker.close()
            self.broker = usual
            self.redis.acl_deluser("limited")

    def commands_of(self, act: Callable[[], object]) -> dict[str, int]:
        """Command → how often a script uses it when this is done for the second time; TIME is left out."""
        act()
        before = self._calls()
        act()
        after = self._calls()
        own = {"time", "evalsha", "evalsha_ro", "info"}
        return {
            name: more
            for name, calls in after.items()
            if (more := calls - before.get(name, 0)) and name not in own
        }

    def _calls(self) -> dict[str, int]:
        stats = cast("dict[str, dict[str, int]]", self.redis.info("commandstats"))
        return {name.removeprefix("cmdstat_"): facts["calls"] for name, facts in stats.items()}

    # Executors that sleep

    def sleep(self, *executors: str, lane: str = "") -> None:
        """As if these executors had found the queue, or this lane, empty."""
        self.redis.sadd(self.sleepers_key(lane), *executors)

    def sleepers(self, lane: str = "") -> set[str]:
        """The executors that a new entry may wake: those that read all lanes, or those that read some and this one."""
        return {shown(name) for name in cast("Any", self.redis.smembers(self.sleepers_key(lane)))}

    def halted(self) -> set[str]:
        """The executors that sleep because the queue is paused."""
        return {shown(name) for name in cast("Any", self.redis.smembers(self.keys["halted"]))}

    def sleepers_key(self, lane: str = "") -> str:
        return self.keys["idle"] + (f":{lane}" if lane else "")

    @contextmanager
    def subscribed(self, *executors: str) -> Generator[Callable[[], list[tuple[str, str]]]]:
        """These executors are subscribed to their bells. `heard()` returns what they have received since the last call,
        in order: [("anna", "look s")]. It waits for no message: what a script sends is there with its reply."""
        bells = {self.keys.bell(executor): executor for executor in executors}
        with Bells(self.redis, list(bells)) as ears:
            yield lambda: [(bells[channel], message) for channel, message in ears.heard()]

    # Verbs with the arguments that most tests give them

    def enqueue(self, *jobs: AnyWireJob) -> list[Any]:
        return self.do(verbs.jobs.enqueue, jobs)

    def fetch(
        self,
        consumer: str = "anna",
        *,
        free: int = 100,
        lanes: Sequence[str] = READ,
        lifetimes: Lifetimes = LIFETIMES,
        sleeps: bool = False,
    ) -> Catch:
        return self.do(
            verbs.runs.fetch, consumer=consumer, free=free, lanes=lanes, lifetimes=lifetimes, sleeps=sleeps
        )

    def take(self, consumer: str = "anna", free: int = 100) -> list[Delivery]:
        return self.fetch(consumer, free=free).deliveries

    def finish(
        self, deliveries: Iterable[Delivery], outcome: Outcome = DONE, *, lifetimes: Lifetimes = LIFETIMES
    ) -> list[int]:
        return self.settle([Settled(delivery, outcome) for delivery in deliveries], lifetimes)

    def settle(self, settled: Sequence[Settled], lifetimes: Lifetimes = LIFETIMES) -> list[int]:
        """Settle a batch. A dead job that begins a group has the answer 1, as every other that is settled."""
        answers = self.do(verbs.runs.finish, settled, lifetimes)
        return [1 if answer == 3 else answer for answer in answers]

    def release(self, held: Iterable[Delivery | Entry], why: Reason = "stopped") -> int:
        return self.do(verbs.runs.release, [(one.lane, one.entry) for one in held], why)

    def recover(self, *, silent: bool = True, late_ms: int = 0, **given: Any) -> Sweep:
        """A page of recovery, after every executor has been `silent` for a lease."""
        if silent:
            self.silence()
        usual: dict[str, Any] = {"lease_ms": LEASE_MS, "interval_ms": 1000, "max_deliveries": 4, "more": True}
        return self.do(verbs.runs.recover, LIFETIMES, beaten_ms=self.now() - late_ms, **usual | given)

    def pause(self, *sides: QueueSide, who: str = "anna@web-1", why: str = "") -> QueuePause:
        """Pause these sides of the queue, or both."""
        return self.do(verbs.queues.pause, sides or get_args(QueueSide), who, why)

    def resume(self, *sides: QueueSide) -> Resumed:
        """A page of the end of the pause of these sides, or of both."""
        return self.do(verbs.queues.resume, sides or get_args(QueueSide))

    def cancel(self, *keys: str, why: str = "cancelled") -> list[int]:
        return self.do(verbs.jobs.cancel, keys, LIFETIMES, why)

    def gc(
        self, *, max_age_ms: int = 10**12, max_len: int = 10**6, idle_ms: int = 10**12, limit: int = 100
    ) -> tuple[int, int]:
        return self.do(verbs.queues.gc, max_age_ms=max_age_ms, max_len=max_len, idle_ms=idle_ms, limit=limit)

    def index(self, limit: int = 100) -> int:
        """Count all dead jobs that are not in the index of groups; returns how many those were. A wrong index is made
        anew once."""
        pages = [self.do(verbs.dead.index, limit)]
        while pages[-1].more:
            pages.append(self.do(verbs.dead.index, limit))
            assert [page.anew for page in pages].count(True) <= 1
        return sum(page.jobs for page in pages)

    # Shortcuts to a state

    def executing(self, *jobs: AnyWireJob) -> list[Delivery]:
        """These jobs (or one), sent and taken by anna."""
        self.enqueue(*(jobs or [a_job()]))
        return self.take()

    def dead(self, *jobs: AnyWireJob, outcome: Outcome = DEAD) -> list[str]:
        """The DLQ entries of these jobs (or one), which have died."""
        before = len(self.entries("dlq"))
        self.finish(self.executing(*jobs), outcome)
        return [entry for entry, _ in self.entries("dlq")][before:]

    def redelivered(self, key: str, deliveries: int, lane: str = "s") -> None:
        """Queue the job anew, as its so many-th delivery: what recovery does for a job of a dead executor."""
        old_lane, _, old = self.record(key)["p"].partition("/")
        entry = shown(cast("bytes", self.redis.xadd(self.keys[lane], {"i": key, "n": deliveries})))
        self.redis.hset(self.keys.record(key), mapping={"s": "Q", "p": f"{lane}/{entry}"})
        self.redis.xack(self.keys[old_lane], GROUP, old)
        self.redis.xdel(self.keys[old_lane], old)

    def silent(self, deliveries: Iterable[Delivery], milliseconds: int, consumer: str = "anna") -> None:
        """The leases of these were last renewed so long ago."""
        for lane, entry in [(delivery.lane, delivery.entry) for delivery in deliveries]:
            self.redis.xclaim(self.keys[lane], GROUP, consumer, 0, [entry], idle=milliseconds, justid=True)

    def read(self, consumer: str = "anna", lanes: Sequence[str] = READ) -> list[Entry]:
        """One entry of each lane is delivered, and its job does not start: the call stopped half-way."""
        self.make_lanes(*lanes)
        streams = {self.keys[lane]: ">" for lane in lanes}
        reply = cast("Any", self.redis.xreadgroup(GROUP, consumer, cast("Any", streams), count=1))
        return [
            Entry(shown(stream).removeprefix(self.keys.prefix), shown(entry))
            for stream, entries in reply
            for entry, _ in entries
        ]

    def stray(self, stream: str, **fields: str) -> str:
        """An entry that no arrow wrote."""
        return shown(cast("bytes", self.redis.xadd(self.keys[stream], cast("Any", fields))))

    @contextmanager
    def listening(self, *channels: str) -> Generator[Callable[..., tuple[str, bytes] | None]]:
        """`heard()` is the next message as (channel, data); None when there is none within so many seconds."""
        with cast("Any", self.redis).pubsub(ignore_subscribe_messages=False) as pubsub:
            pubsub.subscribe(*channels)
            for _ in channels:
                assert pubsub.get_message(timeout=30)["type"] == "subscribe"

            def heard(within: float = 5.0) -> tuple[str, bytes] | None:
                message = pubsub.get_message(timeout=within)
                return message and (shown(message["channel"]), message["data"])

            yield heard

    # What is there

    def record(self, key: str = "1") -> dict[str, str]:
        return self._hash(self.keys.record(key))

    def records(self, keys: Iterable[str]) -> dict[str, tuple[dict[str, str], list[str]]]:
        """Job → its record and its result, of many jobs in one round trip."""
        keys = [*keys]
        asking = self.redis.pipeline(transaction=False)
        for key in keys:
            asking.hgetall(self.keys.record(key))
            asking.lrange(self.keys.result(key), 0, -1)
        replies = cast("Any", asking.execute())
        return {
            key: ({shown(field): shown(value) for field, value in record.items()}, [*map(shown, result)])
            for key, record, result in zip(keys, replies[::2], replies[1::2], strict=True)
        }

    def history(self, key: str = "1") -> list[dict[str, Any]]:
        lines = cast("list[bytes]", self.redis.lrange(self.keys.history(key), 0, -1))
        return [orjson.loads(line) for line in lines]

    def stats(self) -> dict[str, int]:
        return {name: int(value) for name, value in self._hash(self.keys["stats"]).items()}

    def entries(self, stream: str) -> list[tuple[str, dict[str, str]]]:
        reply = cast("Any", self.redis.xrange(self.keys[stream]))
        return [(shown(entry), {shown(k): shown(v) for k, v in fields.items()}) for entry, fields in reply]

    def waiting(self, lane: str = "s") -> list[str]:
        """The jobs in a lane, delivered or not, in order."""
        return [fields["i"] for _, fields in self.entries(lane)]

    def everywhere(self) -> list[str]:
        """The jobs of every place there is."""
        streams = [job for stream in (*READ, QUARANTINE, "dlq") for job in self.waiting(stream)]
        return streams + [job for name in ("sched", "retry") for job in self.due(name)] + self.in_lines()

    def in_lines(self) -> list[str]:
        """The jobs that wait for gates."""
        lines = cast("Iterable[bytes]", self.redis.scan_iter(f"{self.keys.prefix}line:*", count=1000))
        return [shown(job) for line in lines for job in cast("Any", self.redis.zrange(line, 0, -1))]

    def keys_of_limits(self) -> list[str]:
        """The keys that are there only while a limit keeps jobs waiting, or lets some run."""
        kinds = ("slots:", "line:", "wait:", "lines", "turn")
        prefixes = tuple(self.keys.prefix + kind for kind in kinds)
        every = cast("Iterable[bytes]", self.redis.scan_iter(f"{self.keys.prefix}*", count=1000))
        return sorted(name for key in every if (name := shown(key)).startswith(prefixes))

    def due(self, name: str = "sched") -> dict[str, int]:
        """Job → due time, of a sorted set."""
        reply = cast("Any", self.redis.zrange(self.keys[name], 0, -1, withscores=True))
        return {shown(job): int(score) for job, score in reply}

    def pending(self, lane: str = "s") -> dict[str, str]:
        """Entry → consumer, of what was delivered and not settled; empty when no executor has ever read the lane."""
        try:
            reply = cast("Any", self.redis.xpending_range(self.keys[lane], GROUP, "-", "+", 1000))
        except redis.ResponseError as error:
            if str(error).startswith("NOGROUP"):
                return {}
            raise
        return {shown(entry["message_id"]): shown(entry["consumer"]) for entry in reply}

    def idle(self, *held: Delivery | Entry) -> list[int]:
        """How long ago, in ms, these entries were delivered or renewed."""
        ages = list[int]()
        for one in held:
            reply = self.redis.xpending_range(self.keys[one.lane], GROUP, one.entry, one.entry, 1)
            ages += [int(entry["time_since_delivered"]) for entry in cast("Any", reply)]
        return ages

    def silence(self, *held: Delivery | Entry) -> None:
        """As if these entries (or all) had been delivered, or renewed, a lease ago."""
        for lane in (*READ, QUARANTINE):
            there = {entry for entry, _ in self.entries(lane)}
            meant = {one.entry for one in held if one.lane == lane} if held else there
            for entry, owner in self.pending(lane).items():
                if entry in meant & there:
                    words: list[Word] = [
                        "XCLAIM",
                        self.keys[lane],
                        GROUP,
                        owner,
                        0,
                        entry,
                        "IDLE",
                        LEASE_MS,
                        "JUSTID",
                    ]
                    self.broker.ask(Command(words, as_is))

    def groups(self, lane: str = "s") -> list[str]:
        """The groups of a lane; empty when it does not exist."""
        if not self.redis.exists(self.keys[lane]):
            return []
        reply = cast("Any", self.redis.xinfo_groups(self.keys[lane]))
        return [shown(group["name"]) for group in reply]

    def consumers(self, lane: str = "s") -> set[str]:
        """The consumers of a lane; empty when no executor has ever read it."""
        if not self.groups(lane):
            return set()
        reply = cast("Any", self.redis.xinfo_consumers(self.keys[lane], GROUP))
        return {shown(consumer["name"]) for consumer in reply}

    def result(self, key: str = "1") -> list[str]:
        return [shown(item) for item in cast("Any", self.redis.lrange(self.keys.result(key), 0, -1))]

    def holder(self, name: str) -> str | None:
        """The job that an idempotency key names."""
        value = cast("Any", self.redis.get(self.keys.idempotency(name)))
        return None if value is None else shown(value)

    def ttl(self, name: str) -> int:
        """Milliseconds a key has left; -1 is for ever, -2 is no such key."""
        return int(cast("Any", self.redis.pttl(name)))

    def record_ttl(self, key: str = "1") -> int:
        return self.ttl(self.keys.record(key))

    def result_ttl(self, key: str = "1") -> int:
        return self.ttl(self.keys.result(key))

    def now(self) -> int:
        """The server's clock, in milliseconds."""
        seconds, micros = cast("Any", self.redis.time())
        return int(seconds * 1000 + micros // 1000)

    def everything(self) -> dict[str, object]:
        """Every key with all that is in it: equal before and after means that nothing was written."""
        return {shown(name): self._content(name) for name in cast("list[bytes]", self.redis.keys("*"))}

    def _content(self, name: bytes) -> object:
        # The fields of a large hash change their order when they are looked at.
        return self.redis.hgetall(name) if self.redis.type(name) == b"hash" else self.redis.dump(name)

    def _hash(self, name: str) -> dict[str, str]:
        reply = cast("dict[bytes, bytes]", self.redis.hgetall(name))
        return {shown(field): shown(value) for field, value in reply.items()}


class Bells:
    """A subscription to sharded channels that can be asked for what it has received so far."""

    def __init__(self, client: redis.Redis, channels: Sequence[str]) -> None:
        self._pubsub: Any = cast("Any", client).pubsub()
        self._channels = channels
        self._answered = 0

    def __enter__(self) -> Self:
        self._pubsub.ssubscribe(*self._channels)
        for _ in self._channels:
            assert self._next()["type"] == "ssubscribe"
        return self

    def __exit__(self, *args: object) -> None:
        self._pubsub.close()

    def heard(self) -> list[tuple[str, str]]:
        """The messages since the last call: (channel, message). The server sends them before it replies to PING."""
        self._answered += 1
        self._pubsub.ping(str(self._answered))
        found = list[tuple[str, str]]()
        while (message := self._next())["type"] != "pong":
            found.append((shown(message["channel"]), shown(message["data"])))
        assert message["data"] == str(self._answered).encode()
        return found

    def _next(self) -> Any:
        message = self._pubsub.get_message(timeout=30)
        assert message is not None
        return message


def shown(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def about(milliseconds: int) -> Any:
    """Equal to a TTL of so many milliseconds that was set a moment ago."""
    return _About(milliseconds)


class _About:
    def __init__(self, milliseconds: int) -> None:
        self._milliseconds = milliseconds

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and self._milliseconds - 10_000 < other <= self._milliseconds

    def __hash__(self) -> int:
        return hash(self._milliseconds)

    def __repr__(self) -> str:
        return f"about {self._milliseconds} ms"
