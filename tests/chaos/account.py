"""What became of every job, by the records in Redis and by the ledger outside of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, cast

import orjson
import redis

from fennelq.broker.keys import STREAMS, QueueKeys, queue_keys
from tests.chaos import jobs
from tests.kit.ledger import Ledger, Row
from tests.kit.server import Server
from tests.kit.waiting import eventually

Sent = Mapping[str, str]
"""Job id → what it is: the name of a function of `jobs`, better a `Call`."""
RETURNING: Final = frozenset(
    ("work", "flaky", "for_account", "paced", "due", "block", "spin", "hog_at_first", "in_thread")
)
"""Functions that return a receipt."""


class Call(str):
    """The name of a function of `jobs`, and what this very call of it returns."""

    returns: str | None

    @classmethod
    def of(cls, name: str, returns: str | None) -> Call:
        call = cls(name)
        call.returns = returns
        return call


POISON: Final = "poison"
_STARTS_EXPECTED: Final = {"flaky": 2}
_PAGE: Final = 1000


@dataclass
class Account:
    """The figures of a run; what they should be is for the test to decide."""

    enqueued: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    lost: list[str] = field(default_factory=list[str])
    """Accepted by `delay()`, and neither ended nor anywhere."""
    unfinished: int = 0
    wrong_results: list[str] = field(default_factory=list[str])
    """Jobs that succeeded, and whose result is missing or not what their call returned."""
    completed_twice: int = 0
    """Outcomes written down for jobs that had one."""
    retried_twice: int = 0
    """Tries counted for jobs that had not failed that often."""
    run_twice: int = 0
    """Runs that came to their end although one had before."""
    started_again: int = 0
    """Starts that no failure and no poison explains: to be paid from the budget."""
    poison_dead: int = 0
    innocents_dead: list[str] = field(default_factory=list[str])
    recovered: int = 0
    released: int = 0
    budget: int = 0

    def sound(self) -> None:
        """Fails unless every promise that always holds was kept."""
        __tracebackhide__ = True
        assert not self.lost, f"lost: {self.lost[:5]} …; {self}"
        assert not self.unfinished, str(self)
        assert not self.wrong_results, f"wrong results: {self.wrong_results[:5]} …; {self}"
        assert not self.completed_twice, str(self)
        assert not self.retried_twice, str(self)
        assert not self.innocents_dead, str(self)
        assert self.started_again <= self.budget, str(self)
        assert self.run_twice <= self.budget, str(self)

    def lines(self) -> Iterator[tuple[str, object]]:
        """For people."""
        yield "enqueued", self.enqueued
        yield "done", self.done
        yield "dead", self.dead
        yield "run twice", f"{self.started_again} (in the hands of the killed: {self.budget})"
        yield "completed twice", self.completed_twice
        yield "wrong results", len(self.wrong_results)
        yield "lost", len(self.lost)

    def __str__(self) -> str:
        again = f"{self.started_again} of {self.budget}"
        innocents, poison = len(self.innocents_dead), self.poison_dead
        return (
            f"{self.enqueued} jobs, {self.done} done, lost {len(self.lost)}, unfinished {self.unfinished}, "
            f"wrong results {len(self.wrong_results)}, "
            f"completed twice {self.completed_twice}, retried twice {self.retried_twice}, "
            f"innocents dead {innocents}, poison dead {poison}, run again {again}, to the end {self.run_twice}, "
            f"recovered {self.recovered}, handed back {self.released}"
        )


class _Record:
    """What is asked of a record."""

    def __init__(self, status: str, tries: int, place: str) -> None:
        self.status, self.tries, self.place = status, tries, place


def account(
    server: Server,
    sent: Sent,
    ledger: Ledger | None = None,
    *,
    budget: int = 0,
    queues: tuple[str, ...] = ("default",),
) -> Account:
    """The account of these jobs. A queue must have had no others, or what is done twice cannot be known."""
    it = Account(enqueued=len(sent), budget=budget)
    with server.client(timeout=30) as client:
        records = _records(client, sent)
        stats = sum((Counter(_stats(client, queue)) for queue in queues), Counter[str]())
        results = _results(client, sent)
    for job, record in records.items():
        _judge(it, job, sent[job], record)
        if record is not None and record.status == "S" and not _is_right(job, sent[job], results[job]):
            it.wrong_results.append(f"{job} {results[job]!r}")
    more_results = sum(max(0, len(found) - 1) for found in results.values())
    it.completed_twice = (
        sum(stats[kind] for kind in "SNDK")
        - it.done
        - it.dead
        - it.cancelled
        - stats["replayed"]
        + more_results
    )
    it.retried_twice += max(0, stats["R"] - sum(record.tries for record in records.values() if record))
    it.recovered, it.released = stats["recovered"], stats["released"]
    if ledger is not None:
        _read(it, ledger.read(), sent)
    return it


def _judge(it: Account, job: str, what: str, record: _Record | None) -> None:
    if record is None:
        it.lost.append(job)
    elif record.status in "SN":
        it.done += 1
    elif record.status == "D":
        it.dead += 1
    elif record.status == "K":
        it.cancelled += 1
    else:
        it.unfinished += 1
    if record is None:
        return
    if record.status == "D" and what == POISON:
        it.poison_dead += 1
    elif record.status == "D":
        it.innocents_dead.append(job)
    else:
        it.retried_twice += max(0, record.tries - (_STARTS_EXPECTED.get(what, 1) - 1))


def _read(it: Account, rows: list[Row], sent: Sent) -> None:
    starts = Counter(row.job_id for row in rows if row.kind == "start")
    ends = Counter(row.job_id for row in rows if row.kind == "end")
    for job, what in sent.items():
        it.run_twice += max(0, ends[job] - 1)
        if what != POISON:
            it.started_again += max(0, starts[job] - _STARTS_EXPECTED.get(what, 1))


def _records(client: redis.Redis, sent: Sent) -> dict[str, _Record | None]:
    return {
        job: _Record(_text(fields[0]) or "Q", int(fields[1] or 0), _text(fields[2])) if any(fields) else None
        for job, fields in _of_each(
            client, sent, lambda pipe, keys, key: pipe.hmget(keys.record(key), "s", "n", "p")
        )
    }


def _results(client: redis.Redis, sent: Sent) -> dict[str, list[bytes]]:
    return dict(_of_each(client, sent, lambda pipe, keys, key: pipe.lrange(keys.result(key), 0, -1)))


def _is_right(job: str, what: str, results: list[bytes]) -> bool:
    """Whether a job that succeeded has the result of its own call; of a job that is known by its name alone, the id
    shows whose result it is."""
    if what not in RETURNING:
        return True
    found = orjson.loads(results[0]).get("ok") if results else None
    if isinstance(what, Call) and what.returns is not None:
        return bool(found == what.returns)
    return isinstance(found, str) and found.startswith(f"{job}(")


Ask = Callable[[Any, QueueKeys, str], Any]


def _of_each(client: redis.Redis, sent: Sent, ask: Ask) -> Iterator[tuple[str, Any]]:
    left = iter(sent)
    while page := list(islice(left, _PAGE)):
        pipe = client.pipeline(transaction=False)
        for job in page:
            queue, _, key = job.partition(":")
            ask(pipe, queue_keys(jobs.NAME, queue), key)
        yield from zip(page, pipe.execute(), strict=True)


def _stats(client: redis.Redis, queue: str) -> dict[str, int]:
    fields = cast("dict[bytes, bytes]", client.hgetall(queue_keys(jobs.NAME, queue)["stats"]))
    return {_text(name): int(value) for name, value in fields.items()}


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def left(server: Server, queue: str = "default") -> int:
    """Jobs that are still somewhere and go on by themselves."""
    keys = queue_keys(jobs.NAME, queue)
    with server.client() as client:
        pipe = client.pipeline(transaction=False)
        for lane in STREAMS:
            pipe.xlen(keys[lane])
        for name in ("sched", "retry"):
            pipe.zcard(keys[name])
        return sum(pipe.execute())


def drained(server: Server, *, within: float, queue: str = "default") -> float:
    """Waits until nothing is left to be done; answers how many seconds that took."""
    began = time.monotonic()
    eventually(
        lambda: left(server, queue) == 0,
        within=within,
        every=0.05,
        tolerate=(redis.RedisError,),
        what=f"nothing is left to be done in {queue}",
    )
    return time.monotonic() - began
