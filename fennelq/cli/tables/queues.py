"""The table of queues in `queue list` and `info`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fennelq.cli import output
from fennelq.cli.tables.table import Column
from fennelq.manage.queues.info import QueueInfo
from fennelq.manage.watch import Rates
from fennelq.model.pause import QueuePause
from fennelq.waiting.reasons import because_of_pause

_COLUMNS: Final[tuple[Column, ...]] = (
    Column("queue", least=16),
    Column("waiting"),
    Column("running", leave=2),
    Column("scheduled", leave=4),
    Column("retry", leave=5),
    Column("dead"),
)
_LINES = (Column("in lines", leave=3), Column("lines", leave=6))
_PAUSED = Column("paused", least=9, leave=1)  # the sentence below the table says it too
_FULL = Column("full")
_RATES = (Column("done/s", leave=7), Column("failed/s", leave=8))


def show_queues(queues: Sequence[QueueInfo], rates: Mapping[str, Rates] | None = None) -> None:
    """Print a table of queues, and their problems below it. It shows jobs in lines, bounds, and what is paused, only if
    there are some. With `rates`, it shows how many jobs end and fail per second."""
    columns: tuple[Column, ...] = _COLUMNS
    rows = [_row(queue) for queue in queues]
    if rates is not None:
        columns = (*columns, *_RATES)
        rows = [(*row, *_rates(rates.get(queue.name))) for row, queue in zip(rows, queues, strict=True)]
    if any(queue.lines for queue in queues):
        columns = (*columns, *_LINES)
        rows = [(*row, queue.in_lines, queue.lines) for row, queue in zip(rows, queues, strict=True)]
    if any(queue.max_waiting for queue in queues):
        columns = (*columns, _FULL)
        rows = [(*row, _fullness(queue)) for row, queue in zip(rows, queues, strict=True)]
    if any(queue.paused for queue in queues):
        columns = (*columns, _PAUSED)
        rows = [
            (*row, queue.paused.what if queue.paused else None)
            for row, queue in zip(rows, queues, strict=True)
        ]
    output.table(columns, rows, empty="No queues yet: send a job.")
    for queue in queues:
        if queue.damage:
            state = "unknown" if queue.unknown else "not served"
            output.note(f"queue {queue.name} is {state}: {queue.damage}")
        if queue.paused:
            output.note(
                f"queue {queue.name}: {queue.paused}; `fennelq queue resume {queue.name}` ends the pause"
            )
            note_ignoring(queue.name, queue.paused)
    for because, names in _waiting(queues).items():
        output.note(f"jobs wait in {', '.join(names)}: {because}")


def note_ignoring(queue: str, pause: QueuePause) -> None:
    """Print on stderr which executors go on although the queue is paused."""
    if pause.ignored_by:
        output.note(
            f"warning: executors with an earlier version of fennelq start the jobs of {queue} nevertheless: "
            f"{', '.join(pause.ignored_by)}. Restart them with this version, or stop them"
        )


def _row(queue: QueueInfo) -> tuple[object, ...]:
    if queue.damage:
        return (queue.name, *("?" for _ in _COLUMNS[1:]))
    return (queue.name, queue.waiting, queue.running, queue.scheduled, queue.retry, queue.dead)


def _rates(rates: Rates | None) -> tuple[str | None, str | None]:
    if rates is None:
        return None, None
    done, failed = done_and_failed(rates)
    return f"{done:,.1f}", f"{failed:,.1f}"


def done_and_failed(rates: Rates) -> tuple[float, float]:
    """The jobs that succeed, and the tries that fail, per second."""
    return rates.get("succeeded", 0.0), rates.get("retried", 0.0) + rates.get("died", 0.0)


def _fullness(queue: QueueInfo) -> str | None:
    """How much of its bound is used: `82 % of 10,000`."""
    if queue.fullness is None:
        return None
    return f"{int(queue.fullness * 100)} % of {queue.max_waiting:,}"


def _waiting(queues: Sequence[QueueInfo]) -> dict[str, list[str]]:
    """The reasons why no worker can run waiting jobs → the queues. Most often one reason is true for all queues. Pauses
    have a sentence of their own."""
    found: dict[str, list[str]] = {}
    for queue in queues:
        pause = because_of_pause(queue.name, queue.paused)
        for because in queue.waiting_because:
            if because == pause:
                continue
            found.setdefault(because, []).append(queue.name)
    return found
