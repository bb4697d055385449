"""One scenario that covers every option, and what it leaves in Redis: `recorded.json` is from an earlier version.

The server's clock stands still and all that is random counts, so equal code leaves equal bytes. Entry ids, which Redis
makes up, are numbered in their order; a TTL is rounded up to seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import count, groupby
from operator import itemgetter
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

import orjson
import pytest
import redis

from fennelq import App, RetryPolicy, clock, task
from fennelq.broker import verbs
from fennelq.broker.keys import GROUP
from fennelq.model.job import Delivery, JobInfo
from fennelq.model.outcome import cancelled, died, not_known, retried, snoozed, succeeded
from fennelq.model.schedule import WireSchedule
from tests.broker.desk import FAILURE, LEASE_MS, LIFETIMES, RESULT_MS, Desk, shown
from tests.broker.timetable import MINUTE, NOW, V1, Timetable
from tests.kit.jobs import altered, as_sent

Contents = dict[str, dict[str, Any]]
"""Key → its type, what is in it, and how long it is still kept."""

_ENTRY: Final = re.compile(r"\b\d{13}-\d+\b")
_PLACE: Final = re.compile(r"\b(s|s:high|s:low|iso|dlq)/(\d{13}-\d+)\b")
_LATER: Final = ("progress", "due_by")
"""Attributes of JobInfo that are younger than the record. No record of the earlier version has such a field."""
_AT: Final = datetime(2027, 1, 1, 12, tzinfo=UTC)


def determined(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing is random, this machine's clock stands still, and keys are made as in the earlier version."""
    number = count(1)
    monkeypatch.setattr(os, "urandom", lambda size: next(number).to_bytes(size, "big"))  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
    monkeypatch.setattr(clock, "wall_ms", lambda: NOW)
    monkeypatch.setattr(task, "new_key", lambda: f"{NOW:012x}{os.urandom(8).hex()}")


def play(desk: Desk, timetable: Timetable) -> None:
    """The scenario."""
    jobs, schedules = calls()
    desk.enqueue(*jobs.values())
    keys = {name: job.id.partition(":")[2] for name, job in jobs.items()}
    fates(desk, keys)
    recur(desk, timetable, schedules)


def calls() -> tuple[dict[str, Any], list[WireSchedule]]:
    """A call for every option, by what is special about it, and schedules of such calls."""
    app = App("shop", redis_url="redis://localhost:1", default_queue="mail")

    @app.task(name="app:note")
    async def note(n: int, *, text: str = "") -> int:
        return n

    @app.task(
        name="app:loud",
        retries=2,
        timeout=5,
        result_ttl=7,
        failure_ttl=8,
        headers={"tenant": "acme"},
        priority="high",
        expires=3600,
        max_deliveries=7,
    )
    async def loud(n: int) -> int:
        return n

    @app.task(name="app:patient", retry=RetryPolicy.linear(4, step=2))
    async def patient() -> None: ...

    policy = RetryPolicy.explicit([1, 2.5, 60], jitter=True)
    every: dict[str, Any] = {
        "priority": "low",
        "delay": timedelta(minutes=3),
        "expires": 905,
        "retry": policy,
        "timeout": None,
        "key": "every/é",
        "ttl": 45,
        "job_id": "every",
        "result_ttl": 0,
        "failure_ttl": timedelta(hours=1),
        "max_deliveries": 2,
        "headers": {"trace": "é", "tenant": "other"},
    }
    everything = loud.options(priority="low", expires=30, max_deliveries=3, retry=policy, headers={"x": "é"})
    of_another: dict[str, Any] = {**every, "job_id": "every2", "key": "every2"}
    jobs = {
        "plain": note.job(1),
        "plain, succeeds": note.job(2, text="x" * 100),
        "plain, no value": patient.job(),
        "high": note.options(priority="high").job(3),
        "low": note.options(priority="low").job(4),
        "normal": note.options(priority="normal").job(5),
        "delay": note.options(delay=60).job(6),
        "delay, high": note.options(delay=0.5, priority="high").job(7),
        "no delay": note.options(delay=0).job(8),
        "at": note.options(at=_AT).job(9),
        "at, low, expires": note.options(at=_AT, priority="low", expires=timedelta(days=400)).job(10),
        "expires": note.options(expires=90).job(11),
        "expires soon": note.options(expires=1).job(12),
        "key": note.options(key="k:1").job(13),
        "key, again": note.options(key="k:1").job(14),
        "key and window": note.options(key="k:2", ttl=30).job(15),
        "key, succeeds": note.options(key="k:3").job(16),
        "job id": note.options(job_id="order-7").job(17),
        "job id, again": note.options(job_id="order-7").job(17),
        "job id, another call": note.options(job_id="order-7").job(18),
        "job id and key": note.options(job_id="order-8", key="k:4").job(19),
        "max deliveries": note.options(max_deliveries=2).job(20),
        "headers": note.options(headers={"a": "1", "b": "é"}).job(21),
        "retries": note.options(retries=1).job(22),
        "retry": note.options(retry=policy, retries=9).job(23),
        "timeout": note.options(timeout=2).job(24),
        "no timeout": note.options(timeout=None).job(25),
        "result ttl": note.options(result_ttl=timedelta(minutes=1)).job(26),
        "failure ttl": note.options(failure_ttl=0.25).job(27),
        "declared": loud.job(28),
        "declared and called": loud.options(headers={"b": "2"}, retries=0, max_deliveries=1).job(29),
        "every": note.options(**every).job(30),
        "every, of a declared task": loud.options(**of_another).job(31),
        "elsewhere": app.describe("other.tasks:work", 1, _kwargs={"b": [2]}, timeout=3, max_deliveries=9),
    }
    for name in ("every", "every, of a declared task"):
        # The earlier version sent jobs that expire before they are due.
        jobs[name] = altered(jobs[name], expires_ms=90_500)
    jobs |= {fate: note.options(job_id=fate, headers={"fate": fate}).job(0) for fate in FATES}
    return jobs, [
        WireSchedule.of("minutely", as_sent(note.job(1)), cron=None, every=60, when={}),
        WireSchedule.of(
            "loud", as_sent(loud.job(2)), cron=None, every=60, when={"catchup": "last", "overlap": "queue"}
        ),
        WireSchedule.of(
            "everything",
            as_sent(everything.job(3)),
            cron="*/5 * * * *",
            every=None,
            when={
                "tz": "Europe/Paris",
                "overlap": "skip",
                "catchup": "all:3",
                "jitter": 9,
                "start": datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Paris")),
                "end": datetime(2030, 1, 1, tzinfo=UTC),
            },
        ),
        WireSchedule.of("elsewhere", as_sent(jobs["elsewhere"]), cron="@daily", every=None, when={}),
    ]


FATES: Final = (
    "dead",
    "replayed",
    "retried",
    "retried-and-done",
    "cancelled",
    "cancelled-running",
    "snoozed",
    "unknown",
    "released",
    "recovered",
    "running",
)


def fates(desk: Desk, keys: dict[str, str]) -> None:
    """What becomes of some of the jobs."""
    desk.cancel("cancelled", keys["delay, high"])
    held = {delivery.key: delivery for delivery in desk.take()}

    def of(*names: str) -> list[Delivery]:
        return [held[keys[name]] for name in names]

    desk.finish(of("plain, succeeds", "key, succeeds", "expires"), succeeded(b"42", RESULT_MS))
    desk.finish(of("plain, no value"), succeeded(b"", 0))
    desk.finish(of("dead"), died(FAILURE, 3, RESULT_MS))
    desk.finish(of("replayed"), died(FAILURE, 1, RESULT_MS))
    desk.finish(of("retried", "retried-and-done"), retried(60.0, FAILURE, 4))
    desk.finish(of("cancelled-running"), cancelled("cancelled", RESULT_MS))
    desk.finish(of("snoozed"), snoozed(30))
    desk.finish(of("unknown"), not_known(FAILURE, 0, RESULT_MS))
    desk.release(of("released"))
    desk.silence(*of("recovered"))
    recover(desk, NOW)
    entries = {fields["i"]: entry for entry, fields in desk.entries("dlq")}
    desk.do(verbs.dead.replay, [entries["replayed"]])


def recover(desk: Desk, now: int) -> None:
    """A page of recovery, on a clock that stands still."""
    desk.broker.run(
        verbs.runs.recover(
            desk.keys,
            LIFETIMES,
            lease_ms=LEASE_MS,
            interval_ms=1000,
            max_deliveries=9,
            limit=100,
            more=True,
            beaten_ms=now,
            deaths={},
        )
    )


def recur(desk: Desk, timetable: Timetable, schedules: list[WireSchedule]) -> None:
    """Schedules tick; some of their jobs are handed over, the others are on their way. Late jobs expire."""
    *declared, by_hand = schedules
    timetable.declare(V1, *declared)
    timetable.put(by_hand)
    timetable.schedule("pause", by_hand.name)
    timetable.clock.pass_by(5 * MINUTE)
    for seen in timetable.look().due:
        timetable.tick(seen, runs=[seen.next_ms], skipped=4, queued=[NOW] if seen.name == "loud" else None)
    page = timetable.broker.ask(verbs.outbox.handing(timetable.keys, "0"))
    first, *_ = sorted(page.jobs, key=lambda job: job.id)
    desk.enqueue(first)
    timetable.broker.ask(verbs.outbox.handed(timetable.keys, [first.id]))
    desk.enqueue(verbs.schedules.job_by_hand(schedules[2]))
    desk.do(verbs.queues.promote, 100)
    for delivery in desk.take("bert"):
        if delivery.key == "retried-and-done":
            desk.finish([delivery], succeeded(b"[1]", RESULT_MS))


# What is there


def contents(client: redis.Redis) -> Contents:
    """All keys, with the entry ids of each stream numbered in their order."""
    found = {shown(name): _of_key(client, name) for name in _names(client)}
    for name, key in found.items():
        if key["type"] == "stream":
            holds, lane = orjson.dumps(key["holds"]).decode(), name.rpartition("}:")[2]
            key["holds"] = orjson.loads(_ENTRY.sub(rf"{lane}/\g<0>", holds))
    text = orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode()
    numbers = dict[str, str]()
    for lane, places in groupby(sorted(set(_PLACE.findall(text))), itemgetter(0)):
        ids = sorted((entry for _, entry in places), key=_order)
        numbers |= {f"{lane}/{entry}": f"{lane}/1-{place}" for place, entry in enumerate(ids, 1)}
    numbered = _PLACE.sub(lambda place: numbers[place[0]], text)
    return cast("Contents", orjson.loads(numbered))


def _names(client: redis.Redis) -> list[bytes]:
    return sorted(cast("list[bytes]", client.keys("fq:*")))


def _order(entry: str) -> tuple[int, ...]:
    return tuple(map(int, entry.split("-")))


def _of_key(client: redis.Redis, name: bytes) -> dict[str, Any]:
    kind = shown(cast("bytes", client.type(name)))
    ttl: int = client.pttl(name)
    return {
        "type": kind,
        "ttl": -1 if ttl < 0 else -(-ttl // 1000),
        "holds": _READ[kind](cast("Any", client), name),
    }


def _stream(client: Any, name: bytes) -> dict[str, Any]:
    entries = [[shown(entry), _texts(fields)] for entry, fields in client.xrange(name)]
    if not client.xinfo_groups(name):
        return {"entries": entries}
    pending = client.xpending_range(name, GROUP, "-", "+", 1000)
    return {
        "entries": entries,
        "pending": [[shown(one["message_id"]), shown(one["consumer"])] for one in pending],
    }


def _shown(items: Iterable[bytes]) -> list[str]:
    return [shown(item) for item in items]


def _scores(items: Iterable[tuple[bytes, float]]) -> list[list[Any]]:
    return [[shown(one), score] for one, score in items]


def _texts(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {shown(name): shown(value) for name, value in fields.items()}


_READ: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "hash": lambda client, name: _texts(client.hgetall(name)),
    "list": lambda client, name: _shown(client.lrange(name, 0, -1)),
    "set": lambda client, name: sorted(_shown(client.smembers(name))),
    "stream": _stream,
    "string": lambda client, name: shown(client.get(name)),
    "zset": lambda client, name: _scores(client.zrange(name, 0, -1, withscores=True)),
}


def restore(client: redis.Redis, found: Contents) -> None:
    """Write all keys that were found."""
    for name, key in found.items():
        _WRITE[key["type"]](cast("Any", client), name, key["holds"])
        if key["ttl"] >= 0:
            client.pexpire(name, key["ttl"] * 1000)


def _id(place: str) -> str:
    return place.rpartition("/")[2]


def _write_stream(client: Any, name: str, holds: dict[str, Any]) -> None:
    for entry, fields in holds["entries"]:
        client.xadd(name, fields, _id(entry))
    if "pending" not in holds:
        return
    client.xgroup_create(name, GROUP, "0", mkstream=True)
    pending = [_id(entry) for entry, _ in holds["pending"]]
    if pending:
        client.xgroup_setid(name, GROUP, max(pending, key=_order))
    for entry, consumer in holds["pending"]:
        client.xclaim(name, GROUP, consumer, 0, [_id(entry)], force=True, justid=True)


_WRITE: Final[Mapping[str, Callable[[Any, Any, Any], Any]]] = {
    "hash": lambda client, name, holds: client.hset(name, mapping=holds),
    "list": lambda client, name, holds: client.rpush(name, *holds),
    "set": lambda client, name, holds: client.sadd(name, *holds),
    "stream": _write_stream,
    "string": lambda client, name, holds: client.set(name, holds),
    "zset": lambda client, name, holds: client.zadd(name, dict(holds)),
}


# What is read of it


def readings(desk: Desk, timetable: Timetable) -> dict[str, Any]:
    """What the code makes of these keys: every record, the schedules, the jobs on their way, what is delivered next."""
    keys = sorted(_keys_of_records(desk))
    page = timetable.broker.ask(verbs.outbox.handing(timetable.keys, "0"))
    names = timetable.broker.ask(verbs.schedules.names(timetable.keys))[1]
    states = {
        name: timetable.broker.ask(verbs.schedules.state(timetable.keys, name)) for name in sorted(names)
    }
    read = {
        "jobs": {key: _facts_of(desk.broker.ask(verbs.jobs.record(desk.keys, key))) for key in keys},
        "outlines": {key: _facts_of(desk.broker.ask(verbs.jobs.outline(desk.keys, key))) for key in keys},
        "histories": {key: desk.history(key) for key in keys},
        "schedules": {name: _schedule(state["definition"]) for name, state in states.items()},
        "on their way": sorted(job.id for job in page.jobs),
        "unreadable": page.unreadable,
        "ends": [
            [code, task, _plain(end)] for code, task, end in desk.do(verbs.jobs.watch, "", keys, LIFETIMES)
        ],
    }
    desk.enqueue(*page.jobs)
    desk.do(verbs.queues.promote, 100)
    arrived = {job.id.partition(":")[2]: desk.record(job.id.partition(":")[2]) for job in page.jobs}
    read["arrived"] = {
        key: {name: value for name, value in record.items() if name != "p"} for key, record in arrived.items()
    }
    desk.silence()
    recover(desk, timetable.clock.now())
    read["delivered"] = {one.key: _plain(one._replace(entry="")._asdict()) for one in desk.take("zoe")}
    return cast("dict[str, Any]", orjson.loads(orjson.dumps(read, option=orjson.OPT_SORT_KEYS)))


def _facts_of(info: JobInfo | None) -> Any:
    """What is known about a job, without what the earlier version did not know."""
    assert info is not None
    facts = asdict(info)
    assert [facts.pop(name) for name in _LATER] == [None] * len(_LATER)
    # It did not name the mode of a key, and had only keys with a window of their own and keys without.
    assert facts.pop("dedupe") in (None, "throttle")
    # Its workers made no fingerprints.
    if facts["error"] is not None:
        *facts["error"], fingerprint = facts["error"]
        assert fingerprint == ""
    return _plain(facts)


def _keys_of_records(desk: Desk) -> Iterator[str]:
    prefix = desk.keys.record("")
    for name in _names(desk.redis):
        if shown(name).startswith(prefix):
            yield shown(name).removeprefix(prefix)


def _schedule(definition: bytes) -> dict[str, Any]:
    schedule = WireSchedule.from_wire(definition)
    assert schedule.to_wire() == definition
    return {
        "task": schedule.task,
        "queue": schedule.queue,
        "times": [schedule.cron, schedule.every_ms, schedule.tz, schedule.start_ms, schedule.end_ms],
        "runs": [
            schedule.put_off(due)
            for due in schedule.first_ticks(schedule.next_after(NOW), NOW + 20 * MINUTE)[0]
        ],
    }


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, bytes):
        return shown(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in _pairs(value)}
    return [*map(_plain, cast("Any", value))] if isinstance(value, tuple) else value


def _pairs(mapping: Any) -> list[tuple[Any, Any]]:
    return [*mapping.items()]
