"""Verbs for outboxes: the jobs on their way to a queue in another slot. See `lua/lib/outbox.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fennelq.broker.keys import AppKeys, QueueKeys
from fennelq.broker.verb import Command, text
from fennelq.model.wire import AnyWireJob

HANDED_KEPT_MS = 24 * 3_600_000
"""The record of a job that was handed over is kept for at least this time, so that a repeated hand-over finds it."""

_PAGE = 50


class Handing(NamedTuple):
    """A page of the jobs that are on their way to their queues."""

    cursor: str
    """Where the next page begins; "0" after the last."""
    jobs: list[AnyWireJob]
    unreadable: list[str]
    """Ids of jobs that only a later version can read."""
    foreign: list[str]
    """Entries that are not jobs: other parts of fennelq handle them."""

    @property
    def left(self) -> list[str]:
        """The entries that couriers of this version leave in the outbox."""
        return self.unreadable + self.foreign


def handing(keys: AppKeys | QueueKeys, cursor: str) -> Command[Handing]:
    """A page of the jobs in the outbox of the app or of a queue. Pages are short, because jobs may be large."""
    return Command(["HSCAN", keys["out"], cursor, "COUNT", _PAGE], _handing)


def handed(keys: AppKeys | QueueKeys, ids: Sequence[str]) -> Command[int]:
    """Remove these jobs from this outbox, because they have arrived in their queues."""
    return Command(["HDEL", keys["out"], *ids], int)


def _handing(reply: Any) -> Handing:
    cursor, flat = reply
    jobs: list[AnyWireJob] = []
    unreadable: list[str] = []
    foreign: list[str] = []
    for i in range(0, len(flat), 2):
        if b"/" in flat[i]:
            foreign.append(text(flat[i]))
            continue
        try:
            jobs.append(AnyWireJob.from_wire(flat[i + 1]))
        except ValueError:
            unreadable.append(text(flat[i]))
    return Handing(text(cursor), jobs, unreadable, foreign)
