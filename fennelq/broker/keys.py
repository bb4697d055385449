"""Every key name. No other place holds a key literal. `key_kinds` has the type and the lifetime of each.

All keys of a queue share the hash tag `{app/queue}`, so that each arrow is one script on one slot of a Redis Cluster.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from fennelq.broker.key_kinds import KEY_KINDS, TYPES, KeyKind

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
    "paused": "paused",
    "halted": "halted",
    "stopping": "stop",
    "lines": "lines",
    "alarms": "turn",
    "limits": "limits",
    "ends": "ends",
    "ends_read": "ends:read",
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
    "operations": "ops",
    "outbox": "out",
}
"""The same for the keys of an app."""


APPS: Final = "fq:apps"
"""The set of the namespaces of all apps that have used the server."""


class KeyName(NamedTuple):
    """The name of a key, in its parts."""

    app: str
    """Empty when the key belongs to no app."""
    queue: str | None
    """None when the key belongs to no queue."""
    rest: str

    @property
    def kind(self) -> KeyKind | None:
        """The kind of this key in KEY_KINDS; None when it is unknown."""
        name = f"{{app}} {self.rest}" if self.app and self.queue is None else self.rest
        return next((kind for kind in KEY_KINDS if _fits(name, kind.pattern)), None)


def _fits(name: str, patterns: str) -> bool:
    for pattern in patterns.split(", "):
        fixed, variable, _ = pattern.partition("<")
        if name.startswith(fixed) if variable else name == pattern:
            return True
    return False


def parse_key(key: str) -> KeyName:
    """The parts of a key's name."""
    if key == APPS:
        return KeyName("", None, "{server} apps")
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

    def minutes(self, hour: int) -> str:
        """The runs of each minute of one hour: so many hours after the epoch."""
        return f"{self.prefix}t:{hour}"

    def times(self, window: int) -> str:
        """The run and wait times of the tasks in one window: so many times ten minutes after the epoch."""
        return f"{self.prefix}m:{window}"

    def line(self, line: str) -> str:
        """The jobs that wait in a line."""
        return f"{self.prefix}line:{line}"

    def slots(self, gate: str) -> str:
        """The jobs that are through a gate."""
        return f"{self.prefix}slots:{gate}"

    def rate(self, gate: str) -> str:
        """When the next start of a rate is due."""
        return f"{self.prefix}rate:{gate}"

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

    def operation(self, operation: str) -> str:
        """The record of an operation on many jobs."""
        return f"{self.prefix}op:{operation}"

    def questions(self, executor: str) -> str:
        """The channel on which one executor receives what people ask of it. Only clients publish on it, because the
        script of a queue may not publish into another slot."""
        return f"{self.prefix}x:{executor}"

    def answer(self, request: str) -> str:
        """The answer of an executor to one question."""
        return f"{self.prefix}answer:{request}"

    def profile(self, request: str) -> str:
        """The profile of an executor that a client has asked for."""
        return f"{self.prefix}prof:{request}"

    def request(self, request: str) -> str:
        """The queue of the job of a keyed request."""
        return f"{self.prefix}request:{request}"

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
