"""The table of queues in `queue list` and `info`."""

from __future__ import annotations

from collections.abc import Sequence

from fennelq.cli import output
from fennelq.cli.table import Column
from fennelq.manage.queues import QueueInfo

_COLUMNS = (
    Column("queue", least=16),
    *map(Column, ("waiting", "running", "scheduled", "retry", "dead")),
)


def show_queues(queues: Sequence[QueueInfo]) -> None:
    """Print a table of queues, and their problems below it."""
    output.table(_COLUMNS, [_row(queue) for queue in queues], empty="No queues yet: send a job.")
    for queue in queues:
        if queue.damage:
            output.note(f"queue {queue.name} is not served: {queue.damage}")
    for because, names in _waiting(queues).items():
        output.note(f"jobs wait in {', '.join(names)}: {because}")


def _row(queue: QueueInfo) -> tuple[object, ...]:
    if queue.damage:
        return (queue.name, *("?" for _ in _COLUMNS[1:]))
    return (queue.name, queue.waiting, queue.running, queue.scheduled, queue.retry, queue.dead)


def _waiting(queues: Sequence[QueueInfo]) -> dict[str, list[str]]:
    """The reasons why no worker can run waiting jobs → the queues. Most often one reason is true for all queues."""
    found: dict[str, list[str]] = {}
    for queue in queues:
        for because in queue.waiting_because:
            found.setdefault(because, []).append(queue.name)
    return found
