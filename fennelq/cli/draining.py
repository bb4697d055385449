"""Follows an executor that drains, until it has ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from fennelq.cli import output
from fennelq.cli.exits import Exit, Problem
from fennelq.errors import UnknownExecutor

if TYPE_CHECKING:
    from fennelq.app import App

_LOOK_EVERY: Final = 0.5


async def followed(app: App, name: str, running: int) -> None:
    """Returns when the executor has ended in order, and prints on stderr how many jobs it still runs. Raises a Problem
    when it has ended in another way, or does not report any more."""
    shown = None
    while True:
        if running != shown:
            output.note(f"{name} drains: {output.counted(running, 'job')} left")
            shown = running
        await asyncio.sleep(_LOOK_EVERY)
        try:
            executor = await app.executors.info(name)
        except UnknownExecutor:
            return  # an executor that ends in order deletes its facts
        if executor.name != name:
            return
        if not executor.alive:
            raise Problem(_how_it_ended(name, executor.state), Exit.FAILED)
        running = executor.running or 0


def _how_it_ended(name: str, state: str) -> str:
    later = "Other executors take over its jobs when their leases have run out"
    if state == "silent":
        return f"executor {name} does not report any more, before it was drained. If it has ended: {later}"
    return f"executor {name} was not drained, it has {state}. {later}"
