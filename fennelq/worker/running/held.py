"""A job in the hands of an executor, from its delivery until the reply to its settling."""

from __future__ import annotations

import asyncio
from types import FrameType
from typing import Any

from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome

_MOST_CALLS = 10

Token = tuple[str, str, str]
"""Queue, lane and entry: what only the current owner of a job has."""


class Held:
    """A delivery, the task that runs it, and what has happened to both."""

    __slots__ = ("begun", "delivery", "disturbed", "entered", "outcome", "stopped", "task")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        """The task has made its first step."""
        self.entered = False
        """The runner has the job: its handler may have begun."""
        self.stopped = False
        """The executor has asked the run to stop."""
        self.disturbed = False
        """Other code has cancelled the run."""
        self.outcome: Outcome | None = None
        """How the run ended, once it is to be settled. From then on, nothing that the task does counts."""

    @property
    def running(self) -> bool:
        """Whether the task has not come to an outcome yet."""
        return self.task is not None and not self.task.done() and self.outcome is None

    @property
    def never_began(self) -> bool:
        """Whether other code cancelled the task before its first step: then not even its slot was given back."""
        return not self.begun and self.task is not None and self.task.done()

    def stop(self) -> None:
        """Ask the run to stop. A task that has not begun finds `stopped` by itself: cancelled before its first step it
        would end without giving its slot back."""
        self.stopped = True
        if self.begun and self.task is not None:
            self.task.cancel()

    def stack(self) -> str:
        """Where the run waits, the innermost call last. (`Task.get_stack` shows the outermost only.)"""
        waiting: Any = self.task.get_coro() if self.task is not None else None
        calls: list[str] = []
        while waiting is not None:
            frame: FrameType | None = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
            if frame is not None and not _is_ours(frame):
                calls.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
            waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
        return " > ".join(calls[-_MOST_CALLS:])


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("fennelq.worker.")
