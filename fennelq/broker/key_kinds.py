"""Every kind of key, its type and its lifetime: the table that the reference page and the tests read."""

from __future__ import annotations

from typing import Final, NamedTuple


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
        "enqueue, restore",
        "TTL from finish or cancel; gc or purge when dead",
        False,
    ),
    KeyKind(
        "s, s:high, s:low", "stream", "ready jobs, one stream per priority", "the first job", "never", True
    ),
    KeyKind("iso", "stream", "quarantine lane", "recover", "never", True),
    KeyKind("sched", "zset", "due time → job", "enqueue", "empty when idle", True),
    KeyKind("retry", "zset", "due time → failed job", "finish", "empty when idle", True),
    KeyKind("dlq", "stream", "dead jobs", "finish, restore", "entries by replay, gc, purge", True),
    KeyKind(
        "dlq:g",
        "hash",
        "group of dead jobs → how many; how far `index` has come",
        "finish",
        "empty when idle",
        True,
    ),
    KeyKind("dlq:f", "hash", "group of dead jobs → its first job", "finish", "empty when idle", True),
    KeyKind("dlq:l", "hash", "group of dead jobs → its newest entry", "finish", "empty when idle", True),
    KeyKind("r:<key>", "list", "one element, the result", "finish", "TTL", False),
    KeyKind(
        "idem:<task>:<key>", "string", "idempotency key → job", "enqueue", "TTL, or with the record", False
    ),
    KeyKind(
        "hist:<key>",
        "list",
        "lines of a job's history",
        "release, recover, finish, replay, restore",
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
    KeyKind("paused", "string", "what people have paused, who, when and why", "pause", "resume", True),
    KeyKind(
        "halted",
        "set",
        "executors that sleep because the queue is paused",
        "fetch, pause",
        "resume, stay_awake, close, gc",
        True,
    ),
    KeyKind("stop", "set", "running jobs that were asked to stop", "cancel", "empty when idle", True),
    KeyKind(
        "slots:<gate>", "zset", "jobs that are through a gate", "fetch, enqueue", "empty when idle", True
    ),
    KeyKind("line:<gates>@<lane>", "zset", "jobs that wait for gates", "enqueue", "empty when idle", True),
    KeyKind("wait:<gate>", "zset", "lines that wait at a gate", "enqueue", "empty when idle", True),
    KeyKind("lines", "hash", "line → the gate at which it waits", "enqueue", "empty when idle", True),
    KeyKind(
        "turn", "zset", "due time → gate of a rate that opens", "enqueue, fetch", "empty when idle", True
    ),
    KeyKind("rate:<gate>", "string", "when the next start of a rate is due", "fetch", "TTL", False),
    KeyKind("limits", "hash", "numbers of limits that were changed", "limit", "limit", True),
    KeyKind("sweep", "hash", "how far lanes and lines were walked", "recover, mend", "empty when idle", True),
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
    KeyKind(
        "{app} answer:<request>",
        "string",
        "what an executor answers to a person, such as its stacks",
        "clients, executors",
        "TTL",
        False,
    ),
    KeyKind(
        "{app} prof:<request>",
        "string",
        "the profile of an executor, or how far it is",
        "clients, executors",
        "TTL",
        False,
    ),
    KeyKind(
        "{app} request:<request>",
        "string",
        "Idempotency-Key of a program → the queue of its job",
        "the HTTP API, gRPC",
        "TTL",
        False,
    ),
    KeyKind(
        "{server} apps", "set", "namespaces of all apps of the server", "clients, workers", "never", True
    ),
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
    KeyKind("{app} ops", "zset", "when each operation on many jobs began", "op_begin", "TTL", False),
    KeyKind(
        "{app} op:<id>",
        "hash",
        "an operation on many jobs: what, which jobs, how far, who",
        "op_begin",
        "TTL",
        False,
    ),
    KeyKind(
        "{app} audit",
        "stream",
        "what operators have changed: who, when, what, the outcome",
        "commands that change something",
        "entries when there are more than about 10,000",
        True,
    ),
    KeyKind(
        "ends",
        "stream",
        "ends of jobs, for the recorder of the history",
        "ends_take",
        "TTL, a day after the recorder's latest look",
        False,
    ),
    KeyKind(
        "ends:read",
        "hash",
        "how many ends the recorder has read, and how many it has missed",
        "ends_take",
        "TTL",
        False,
    ),
    KeyKind("swept", "string", "this interval's sweep is done", "recover", "TTL", False),
    KeyKind(
        "m:<10 minutes>",
        "hash",
        "runs of each task by outcome; run and wait times by bucket",
        "meter",
        "TTL",
        False,
    ),
    KeyKind("t:<hour>", "hash", "runs of each minute, by outcome", "meter", "TTL", False),
    KeyKind("metered:<executor>", "string", "number of its latest report of times", "meter", "TTL", False),
)

TYPES: Final = {
    name: kind.type
    for kind in KEY_KINDS
    if "<" not in kind.pattern and "{" not in kind.pattern
    for name in kind.pattern.split(", ")
}
"""The keys that have the same name in every queue, with their types."""
