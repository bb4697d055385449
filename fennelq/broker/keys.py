"""Every key name, its type and its lifetime. No other place holds a key literal.

All keys of a queue share the hash tag `{app/queue}`, so that each arrow is one script on one slot of a Redis Cluster.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

GROUP: Final = "fq"
"""The only consumer group of each lane."""

NORMAL: Final = "s"
LANES: Final = {"high": "s:high", "normal": NORMAL, "low": "s:low"}
"""Ready jobs: priority → stream, in the order they are read."""

QUARANTINE: Final = "iso"
STREAMS: Final = (*LANES.values(), QUARANTINE)

QUEUE_NAMES: Final = {
    "counters": "stats",
    "scheduled": "sched",
    "retries": "retry",
    "dead": "dlq",
    "swept": "swept",
    "cursors": "sweep",
    "outbox": "out",
    "sleepers": "idle",
    "stopping": "stop",
}
"""The name that scripts use for a key of a queue, as in `K.dead`, and its name in Redis, which is short because every
call of a script contains it. `K[lane]` is the stream of a lane."""

APP_NAMES: Final = {
    "executors": "executors",
    "alive": "alive",
    "deaths": "deaths",
    "watcher": "watcher",
    "queues": "queues",
    "due": "cron:due",
    "names": "cron:names",
    "meta": "cron:meta",
    "versions": "cron:versions",
    "sources": "cron:sources",
    "known": "cron:known",
    "queued": "cron:queued",
    "outbox": "out",
}
"""The same for the keys of an app."""


class KeyKind(NamedTuple):
    """The facts about a kind of key, for the reference page and for the test that finds keys without a TTL."""

    pattern: str
    type: str
    holds: str
    created_by: str
    ended_by: str
    permanent: bool


KEY_KINDS: Final = (
    KeyKind(
        "j:<key>",
        "hash",
        "the job's record",
        "enqueue",
        "TTL from finish or cancel; gc or purge when dead",
        False,
    ),
    KeyKind(
        "s, s:high, s:low", "stream", "ready jobs, one stream per priority", "the first job", "never", True
    ),
    KeyKind("iso", "stream", "quarantine lane", "recover", "never", True),
    KeyKind("sched", "zset", "due time → job", "enqueue", "empty when idle", True),
    KeyKind("retry", "zset", "due time → failed job", "finish", "empty when idle", True),
    KeyKind("dlq", "stream", "dead jobs", "finish", "entries by replay, gc, purge", True),
    KeyKind("r:<key>", "list", "one element, the result", "finish", "TTL", False),
    KeyKind(
        "idem:<task>:<key>", "string", "idempotency key → job", "enqueue", "TTL, or with the record", False
    ),
    KeyKind(
        "hist:<key>",
        "list",
        "lines of a job's history",
        "release, recover, finish, replay",
        "with the record",
        False,
    ),
    KeyKind("stats", "hash", "counters", "finish", "never", True),
    KeyKind("out", "hash", "jobs on their way to another slot", "any script", "empty when idle", True),
    KeyKind(
        "idle",
        "set",
        "executors that sleep until a job arrives",
        "fetch",
        "ring, stay_awake, close, gc",
        True,
    ),
    KeyKind(
        "idle:<lane>",
        "set",
        "executors that sleep and read only some lanes",
        "fetch",
        "ring, stay_awake, close, gc",
        True,
    ),
    KeyKind("stop", "set", "running jobs that were asked to stop", "cancel", "empty when idle", True),
    KeyKind("sweep", "hash", "how far recovery has walked each lane", "recover", "empty when idle", True),
    KeyKind(
        "{app} alive",
        "zset",
        "when each executor was last present",
        "present, died",
        "members after an hour",
        True,
    ),
    KeyKind("{app} deaths", "hash", "how executors have ended lately", "died", "TTL", False),
    KeyKind("{app} watcher", "string", "the executor that reads the facts of all", "present", "TTL", False),
    KeyKind("{app} queues", "set", "queues ever used", "clients, workers", "never", True),
    KeyKind(
        "{app} executors",
        "hash",
        "facts about executors, for people",
        "present, died",
        "fields after an hour",
        True,
    ),
    KeyKind("{app} cron:due", "zset", "due time → schedule", "declare, schedule", "never", True),
    KeyKind("{app} cron:names", "set", "schedules", "declare, schedule", "never", True),
    KeyKind(
        "{app} cron:meta",
        "hash",
        "last look; version that declares, for workers of a fennelq without services",
        "declare, look",
        "never",
        True,
    ),
    KeyKind(
        "{app} cron:versions",
        "zset",
        "versions that workers of a fennelq without services must not replace",
        "declare",
        "never",
        True,
    ),
    KeyKind(
        "{app} cron:sources",
        "hash",
        "per service that declares schedules: the holding version, when it was seen, its progress",
        "declare, look",
        "never",
        True,
    ),
    KeyKind(
        "{app} cron:known", "zset", "versions of each service that have declared", "declare", "never", True
    ),
    KeyKind("{app} cron:of:<service>", "zset", "schedules of a service", "declare", "empty when idle", True),
    KeyKind(
        "{app} cron:denied:<service>",
        "hash",
        "schedules of a service whose names belong to another one",
        "declare",
        "empty when idle",
        True,
    ),
    KeyKind(
        "{app} cron:queued", "hash", "runs that wait for the one before them", "tick", "empty when idle", True
    ),
    KeyKind("{app} cron:s:<name>", "hash", "state of a schedule", "declare, schedule", "remove", True),
    KeyKind("{app} out", "hash", "jobs on their way to another slot", "tick", "empty when idle", True),
    KeyKind("swept", "string", "this interval's sweep is done", "recover", "TTL", False),
)

TYPES: Final = {
    name: kind.type
    for kind in KEY_KINDS
    if "<" not in kind.pattern and "{app}" not in kind.pattern
    for name in kind.pattern.split(", ")
}
"""The keys that have the same name in every queue, with their types."""


class KeyName(NamedTuple):
    """The name of a key, in its parts."""

    app: str
    queue: str | None
    """None when the key belongs to no queue."""
    rest: str

    @property
    def kind(self) -> KeyKind | None:
        """The kind of this key in KEY_KINDS; None when it is unknown."""
        name = f"{{app}} {self.rest}" if self.queue is None else self.rest
        return next((kind for kind in KEY_KINDS if _fits(name, kind.pattern)), None)


def _fits(name: str, patterns: str) -> bool:
    for pattern in patterns.split(", "):
        fixed, variable, _ = pattern.partition("<")
        if name.startswith(fixed) if variable else name == pattern:
            return True
    return False


def parse_key(key: str) -> KeyName:
    """The parts of a key's name."""
    prefix, _, rest = key.partition("}:")
    app, slash, queue = prefix.removeprefix("fq:{").partition("/")
    return KeyName(app, queue if slash else None, rest)


class QueueKeys:
    """The keys of one queue."""

    __slots__ = ("_named", "app", "prefix", "queue")

    def __init__(self, app: str, queue: str) -> None:
        self.app, self.queue = app, queue
        self.prefix = f"fq:{{{app}/{queue}}}:"
        self._named = {name: self.prefix + name for name in TYPES}

    def __getitem__(self, name: str) -> str:
        """A permanent key by its name."""
        return self._named[name]

    def record(self, key: str) -> str:
        """The job's record."""
        return f"{self.prefix}j:{key}"

    def history(self, key: str) -> str:
        """The lines of the job's history."""
        return f"{self.prefix}hist:{key}"

    def result(self, key: str) -> str:
        """The job's result list."""
        return f"{self.prefix}r:{key}"

    def bell(self, executor: str) -> str:
        """The channel that wakes one executor when this queue has jobs for it."""
        return f"{self.prefix}bell:{executor}"

    def idempotency(self, name: str) -> str:
        """The idempotency key `name`: the name of the task, a colon and the user's key."""
        return f"{self.prefix}idem:{name}"


class AppKeys:
    """The keys of an app that belong to no queue, in a slot of their own."""

    __slots__ = ("app", "prefix")

    def __init__(self, app: str) -> None:
        self.app, self.prefix = app, f"fq:{{{app}}}:"

    def __getitem__(self, name: str) -> str:
        """A permanent key by its name."""
        return self.prefix + name

    def schedule(self, name: str) -> str:
        """The state of a schedule."""
        return f"{self.prefix}cron:s:{name}"

    def schedules_of(self, service: str) -> str:
        """The schedules that a service declares."""
        return f"{self.prefix}cron:of:{service}"

    def denied(self, service: str) -> str:
        """The schedules of a service whose names belong to another one."""
        return f"{self.prefix}cron:denied:{service}"


@lru_cache(maxsize=4096)
def queue_keys(app: str, queue: str) -> QueueKeys:
    """The keys of a queue; they are cached."""
    return QueueKeys(app, queue)


def queues_key(app: str) -> str:
    """The set of all queues that this app has ever used, in a slot of its own."""
    return f"fq:{{{app}}}:queues"


def executors_key(app: str) -> str:
    """The hash of executor → facts about it, with their time. They are for people, and never decide who owns a job."""
    return f"fq:{{{app}}}:executors"


def channel_name(app: str, client: str) -> str:
    """The pub/sub channel on which one process receives the ends of the jobs it waits for."""
    return f"fq:{{{app}}}:c:{client}"


def wake_channel(app: str) -> str:
    """The channel on which all executors of an app learn that schedules have changed."""
    return f"fq:{{{app}}}:wake"


def clock_key(app: str) -> str:
    """The offset of the clock of an app under test, in milliseconds. Only the scripts of `fennelq.testing` read it."""
    return f"fq:{{{app}}}:clock"


def keys_of(app: str) -> str:
    """The pattern of all keys of an app."""
    return f"fq:{{{app}[}}/]*"
