"""What operators do: replay and forget the dead, purge a queue, keep house."""

from __future__ import annotations

from collections.abc import Sequence

from fennelq.broker.keys import QueueKeys
from fennelq.broker.scripts import script
from fennelq.broker.verb import Verb, as_is
from fennelq.broker.verbs.lifecycle import Lifetimes


def replay(keys: QueueKeys, entries: Sequence[str]) -> Verb[list[int]]:
    """Put dead jobs back: per DLQ entry 1 replayed, 0 no longer there, -1 its idempotency key is taken."""
    arrow = script("replay")
    return Verb(arrow, arrow.of(keys), [keys.prefix, *entries], as_is)


def forget(keys: QueueKeys, entries: Sequence[str]) -> Verb[int]:
    """Remove dead jobs for good: DLQ entry, record, result, key. Answers how many."""
    arrow = script("forget")
    return Verb(arrow, arrow.of(keys), [keys.prefix, *entries], int)


def purge(keys: QueueKeys, lifetimes: Lifetimes, limit: int) -> Verb[int]:
    """Cancel a page of the jobs that wait in a queue; answers how many, 0 when none is left."""
    arrow = script("purge")
    return Verb(arrow, arrow.of(keys), [keys.prefix, keys.queue, *lifetimes, limit], int)


def gc(keys: QueueKeys, *, max_age_ms: int, max_len: int, idle_ms: int, limit: int) -> Verb[tuple[int, int]]:
    """Bound the DLQ and drop unused consumers: (dead jobs removed, consumers removed)."""
    arrow = script("gc")
    return Verb(arrow, arrow.of(keys), [keys.prefix, max_age_ms, max_len, idle_ms, limit], tuple)
