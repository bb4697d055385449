"""Pauses and resumes a queue for a command: with what was paused before, for the record of operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fennelq.cli.auditing import Outcome
from fennelq.cli.known import require_queues

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.model.pause import QueuePause, QueueSide


async def pause_queue(
    app: App, queue: str, only: QueueSide | None, why: str
) -> tuple[QueuePause | None, QueuePause]:
    """What was paused before, and what is now."""
    await require_queues(app, [queue])
    before = (await app.queues.info(queue)).paused
    return before, await app.queues.pause(queue, only=only, why=why)


async def resume_queue(
    app: App, queue: str, only: QueueSide | None
) -> tuple[QueuePause | None, QueuePause | None]:
    """What was paused, and what still is."""
    await require_queues(app, [queue])
    before = await app.queues.resume(queue, only=only)
    return before, (await app.queues.info(queue)).paused


def outcome_of_pauses(pauses: tuple[QueuePause | None, QueuePause | None]) -> Outcome:
    """What was paused before and after."""
    before, after = map(_state, pauses)
    return Outcome(before=before, after=after)


def _state(pause: QueuePause | None) -> str:
    return f"{pause.what} paused" if pause else "not paused"
