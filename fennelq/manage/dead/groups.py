"""Counts dead jobs by group: from the index of each queue, and from the entries that the index does not have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys
from fennelq.broker.talk import Finding, Finds, Found, Talk, ask, ask_all
from fennelq.broker.verbs.dead import NOWHERE, OTHERS, DeadGroup, DeadJob, GroupIndex, order
from fennelq.manage.dead.letter import Group

PAGE = 500
"""Entries per read."""


class Tally:
    """The groups found so far, in all queues together."""

    def __init__(self) -> None:
        self.found: dict[str, DeadGroup] = {}

    @property
    def jobs(self) -> int:
        """The number of jobs in all groups."""
        return sum(group.jobs for group in self.found.values())

    def add(self, more: DeadGroup) -> None:
        """Add jobs to their group."""
        known = self.found.get(more.fingerprint)
        if known is None:
            self.found[more.fingerprint] = more
            return
        shown = known if order(known.first) <= order(more.first) else more
        newest = max(known.newest, more.newest, key=order)
        self.found[more.fingerprint] = shown._replace(jobs=known.jobs + more.jobs, newest=newest)

    def add_jobs(self, jobs: Iterable[DeadJob]) -> None:
        """Add single jobs."""
        for dead in jobs:
            self.add(
                DeadGroup(
                    dead.fingerprint,
                    1,
                    dead.task,
                    dead.error_type,
                    dead.message,
                    dead.reason,
                    dead.entry,
                    dead.entry,
                )
            )

    def groups(self) -> list[Group]:
        """The groups, the largest first."""
        return sorted(map(_group, self.found.values()), key=lambda group: (-group.jobs, group.fingerprint))


def merged(every: Iterable[Group]) -> list[Group]:
    """The groups of several queues together, the largest first."""
    found: dict[str, Group] = {}
    for group in every:
        known = found.get(group.fingerprint)
        if known is None:
            found[group.fingerprint] = group
            continue
        shown = known if known.first <= group.first else group
        newest = max(known.newest, group.newest)
        found[group.fingerprint] = replace(shown, jobs=known.jobs + group.jobs, newest=newest)
    return sorted(found.values(), key=lambda group: (-group.jobs, group.fingerprint))


def count_dead(queues: Sequence[QueueKeys], tally: Tally) -> Talk[None]:
    """Add all dead jobs of these queues. The cost does not depend on their number, except for those of executors of an
    earlier release."""
    indexes = yield from ask_all(verbs.dead.groups(keys) for keys in queues)
    for keys, index in zip(queues, indexes, strict=True):
        yield from _count_queue(keys, index, tally)


def _count_queue(keys: QueueKeys, index: GroupIndex, tally: Tally) -> Talk[None]:
    if not index.is_wrong:
        missing, rest = index.length - index.counted, Tally()
        if missing:
            pages = Finds(_pages(keys, index.cursor))
            while (page := (yield from pages.next())) is not None:
                rest.add_jobs(dead for dead in page if not index.counts(dead))
        if rest.jobs >= missing:
            for group in (*index.groups, *rest.found.values()):
                tally.add(group)
            return
    # The index is wrong, so count the entries: a key was deleted, or an executor of an earlier release has removed
    # jobs.
    pages = Finds(_pages(keys, NOWHERE))
    while (page := (yield from pages.next())) is not None:
        tally.add_jobs(page)


def _pages(keys: QueueKeys, after: str) -> Finding[list[DeadJob]]:
    while page := (yield from ask(verbs.dead.dead(keys, after, PAGE))):
        yield Found(page)
        after = page[-1].entry


def _group(found: DeadGroup) -> Group:
    shown = (
        found._replace(task="", error_type="", message="", reason="")
        if found.fingerprint == OTHERS
        else found
    )
    return Group(
        fingerprint=shown.fingerprint,
        task=shown.task,
        error_type=shown.error_type,
        reason=shown.reason,
        message=shown.message,
        jobs=shown.jobs,
        first=_time_of(shown.first),
        newest=_time_of(shown.newest),
    )


def _time_of(entry: str) -> datetime:
    return clock.from_ms(order(entry)[0])
