"""What runs now, and the executors that run it."""

from __future__ import annotations

from typing import Final

from fennelq.web import words
from fennelq.web.details import MOST_RUNNING
from fennelq.web.looks import Look
from fennelq.web.paging import paged
from fennelq.web.rows import executor_rows, slots_of
from fennelq.web.visit import Page, Visit

_ROWS: Final = 25
_MOST: Final = 200


async def show(visit: Visit) -> Page:
    """The executors."""
    look = await visit.look()
    running = await look.running()
    used, slots = slots_of(look.executors.values())
    living = sum(one.alive for one in look.executors.values())
    total = sum(info.running for info in look.queues.values())
    return Page(
        template="executors.html",
        title="Executors",
        section="executors",
        values={
            "headline": f"{words.counted(living, 'executor')}, {used:,} of {slots:,} slots in use",
            "sentence": _sentence(look),
            "paged": paged(running, visit.query, "executors", _ROWS),
            "total": total,
            "most": MOST_RUNNING,
            "rows": executor_rows(look.executors.values())[:_MOST],
            "more": max(0, len(look.executors) - _MOST),
        },
    )


def _sentence(look: Look) -> str:
    """What is special."""
    every = look.executors.values()
    blocked = [one.name for one in every if one.state == "blocked"]
    silent = [one.name for one in every if one.state == "silent"]
    ended = [one for one in every if one.state.startswith("ended")]
    stuck = sum(one.stuck for one in every if one.alive)
    parts: list[str] = []
    if blocked:
        parts.append(f"Code blocks the event loop of {words.listed(blocked, 3)}.")
    if silent:
        parts.append(f"{words.listed(silent, 3)} {'is' if len(silent) == 1 else 'are'} silent.")
    if stuck:
        parts.append(
            f"{words.capital(words.counted(stuck, 'run'))} {'goes' if stuck == 1 else 'go'} on although asked to stop."
        )
    if ended:
        parts.append(f"{words.capital(words.in_letters(len(ended)))} ended in the last hour.")
    return " ".join(parts) or ("All of them are fine." if every else "Start a worker with `fennelq worker`.")
