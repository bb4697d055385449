"""Looks at what a snapshot does not have: the causes of death, the schedules, and the jobs that run.

It asks only for the queues in which the snapshot has seen such jobs, and counts no queue a second time. A queue that
cannot be read does not hide the others: `unread` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fennelq.broker.dispatch import pages
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.talk import Talk, together
from fennelq.broker.trouble import ReplyError
from fennelq.errors import BrokerUnavailable
from fennelq.manage.attention import Need, needs, unread_need
from fennelq.manage.dead.groups import Tally, count_dead
from fennelq.manage.dead.letter import Group
from fennelq.manage.queues.queues import QUEUES_AT_ONCE
from fennelq.manage.running import RunningJob, first_of, longest
from fennelq.manage.schedules import ScheduleInfo, schedules_of
from fennelq.manage.watch import Snapshot

if TYPE_CHECKING:
    from fennelq.app import App

Unread = Mapping[str, str]
"""What could not be read → why, such as `dead jobs of mail` → `Redis refuses …`."""


class DeadGroups(NamedTuple):
    """The dead jobs by cause."""

    groups: Sequence[Group]
    """The largest first."""
    unread: Unread


class Running(NamedTuple):
    """The jobs that run."""

    jobs: Sequence[RunningJob]
    """Those that run longest first."""
    unread: Unread


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A snapshot, and what an overview shows besides."""

    snapshot: Snapshot
    groups: Sequence[Group]
    """The dead jobs by cause, the largest group first."""
    schedules: Sequence[ScheduleInfo]
    """All schedules, sorted by name."""
    unread: Unread

    @property
    def needs(self) -> list[Need]:
        """Everything that needs attention, the most urgent first."""
        unread = [unread_need(what, why) for what, why in self.unread.items()]
        return [*needs(self.snapshot, self.groups, self.schedules), *unread]


def overview(app: App, snapshot: Snapshot) -> Talk[Overview]:
    """The causes of death and the schedules, at the time of this snapshot."""
    parts: list[Talk[Any]] = [dead_groups(app, snapshot), _schedules(app)]
    dead, (schedules, unread) = yield from together(parts)
    return Overview(
        snapshot=snapshot, groups=dead.groups, schedules=schedules, unread={**dead.unread, **unread}
    )


def dead_groups(app: App, snapshot: Snapshot) -> Talk[DeadGroups]:
    """The dead jobs by cause, of the queues that have some."""
    tally = Tally()

    def count(keys: QueueKeys) -> Talk[None]:
        yield from count_dead([keys], tally)

    unread = yield from _each("dead jobs", _having(app, "dead", snapshot), count)
    return DeadGroups(tally.groups(), unread)


def running_jobs(app: App, snapshot: Snapshot, limit: int) -> Talk[Running]:
    """The jobs that run, those that run longest first, at most `limit`."""
    found: list[RunningJob] = []

    def look(keys: QueueKeys) -> Talk[None]:
        jobs = yield from longest(keys, limit)
        found[:] = first_of([*found, *jobs], limit)

    unread = yield from _each("running jobs", _having(app, "running", snapshot), look)
    return Running(found, unread)


def _each(what: str, queues: Sequence[QueueKeys], look: Callable[[QueueKeys], Talk[None]]) -> Talk[Unread]:
    """Look at each of these queues; returns why some of them could not be read."""
    unread: dict[str, str] = {}

    def one(keys: QueueKeys) -> Talk[None]:
        try:
            yield from look(keys)
        except (ReplyError, BrokerUnavailable) as error:
            unread[f"{what} of {keys.queue}"] = why_unread(error)

    for page in pages(queues, QUEUES_AT_ONCE):
        yield from together(map(one, page))
    return unread


def _schedules(app: App) -> Talk[tuple[Sequence[ScheduleInfo], Unread]]:
    try:
        infos, unreadable = yield from schedules_of(app)
    except (ReplyError, BrokerUnavailable) as error:
        return [], {"schedules": why_unread(error)}
    return infos, {f"schedule {error.name}": error.reason for error in unreadable}


def why_unread(error: ReplyError | BrokerUnavailable) -> str:
    """Why something cannot be read. Raises the error when that may change within the next seconds."""
    if isinstance(error, ReplyError):
        return f"Redis replied {error}"
    if error.retriable:
        raise error
    return f"Redis {error.reason}"


def _having(app: App, what: str, snapshot: Snapshot) -> list[QueueKeys]:
    """The queues that have such jobs."""
    queues = snapshot.queues.values()
    return [queue_keys(app.namespace, queue.name) for queue in queues if getattr(queue, what)]
