"""An executor of an earlier version: its scripts, as they were, on the keys of a desk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson

from fennelq.broker import verbs
from fennelq.broker.scripts import script
from fennelq.broker.verb import Verb
from fennelq.broker.verbs.runs import Settled
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome
from tests.broker.desk import LIFETIMES, READ, Desk

A = TypeVar("A")

Added = Mapping[str, Callable[[Any], Any]]
"""Script → its reply with what the replies of this version have besides. A worker of that version reads its own."""


class Before:
    """An executor of that version, `anna`. `file` has its scripts."""

    def __init__(self, desk: Desk, file: str, added: Added) -> None:
        self._desk, self._added = desk, added
        self._scripts: dict[str, Any] = orjson.loads(Path(__file__).with_name(file).read_bytes())

    def fetch(self) -> list[Delivery]:
        catch = self._run(
            verbs.runs.fetch(self._desk.keys, consumer="anna", free=100, lanes=READ, lifetimes=LIFETIMES)
        )
        return catch.deliveries

    def finish(self, deliveries: list[Delivery], outcome: Outcome) -> list[int]:
        return self.settle([Settled(delivery, outcome) for delivery in deliveries])

    def settle(self, settled: Sequence[Settled]) -> list[int]:
        return self._run(verbs.runs.finish(self._desk.keys, settled, LIFETIMES))

    def release(self, deliveries: list[Delivery]) -> int:
        return self._run(verbs.runs.release(self._desk.keys, [(one.lane, one.entry) for one in deliveries]))

    def recover(self, *, max_deliveries: int = 4, more: bool = True) -> tuple[int, int]:
        """Every executor has fallen silent. How many jobs it has queued again, and how many are dead."""
        self._desk.silence()
        sweep = verbs.runs.recover(
            self._desk.keys,
            LIFETIMES,
            lease_ms=60_000,
            interval_ms=1000,
            max_deliveries=max_deliveries,
            beaten_ms=self._desk.now(),
            more=more,
        )
        done = self._run(sweep)
        return done.requeued, done.dead

    def cancel(self, *keys: str) -> list[int]:
        verb = verbs.jobs.cancel(self._desk.keys, keys, LIFETIMES)
        # That version knew no operations, which say which states they ask for, and until when the jobs were sent.
        words, jobs = verb.args[: -len(keys) - 2], verb.args[-len(keys) :]
        return self._run(verb._replace(args=[*words, *jobs]))

    def purge(self) -> int:
        return self._run(verbs.queues.purge(self._desk.keys, LIFETIMES, 100))

    def promote(self) -> int:
        return self._run(verbs.queues.promote(self._desk.keys, 100))[0]

    def gc(self, *, max_len: int) -> tuple[int, int]:
        every = verbs.queues.gc(
            self._desk.keys, max_age_ms=10**12, max_len=max_len, idle_ms=10**12, limit=100
        )
        return self._run(every)

    def remove(self, how: Literal["replay", "forget"], entries: Sequence[str]) -> None:
        """Replay or forget dead jobs, which are still there."""
        if how == "replay":
            # Its script knows no changes: a call has nothing but entries.
            words = [self._desk.keys.prefix, *entries]
            replay = verbs.dead.replay(self._desk.keys, entries)._replace(args=words)
            assert self._run(replay) == [1] * len(entries)
        else:
            assert self._run(verbs.dead.forget(self._desk.keys, entries)) == len(entries)

    def _run(self, verb: Verb[A]) -> A:
        old = self._scripts[verb.name]
        source, keys = old["source"], [self._desk.keys[name] for name in old["keys"]]
        known = script(verb.name)._replace(source=source, sha=hashlib.sha1(source.encode()).hexdigest())
        added = self._added.get(verb.name, lambda reply: reply)

        def read(reply: Any) -> A:
            return verb.read(added(reply))

        return self._desk.broker.run(verb._replace(script=known, keys=keys, read=read))
