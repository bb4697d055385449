"""The jobs that an executor holds. It holds each from its delivery until the reply to its settling."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable, Iterator
from enum import IntEnum
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from fennelq.broker.verbs.runs import Settled
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome
from fennelq.model.progress import Progress
from fennelq.worker.running.reports import report_lost, report_new_error

if TYPE_CHECKING:
    from fennelq.worker.running.progress_notes import Notes

_MOST_CALLS = 10

TIMEOUT: Final = "timeout"
LOST: Final = "lost"
STOPPED: Final = "stopped"

Token = tuple[str, str, str]
"""Queue, lane and entry. A re-delivery is a new entry, so only the current owner of a job has its latest token."""


class Answer(IntEnum):
    """The reply of Redis to an outcome."""

    LOST = 0
    """Another executor has the job now, so the outcome was not written."""
    SETTLED = 1
    SETTLED_BEFORE = 2
    """An earlier call has written the outcome, and the reply to that call was lost."""
    NEW_ERROR = 3
    """The outcome was written, and the job is the only dead one of its kind."""


class Held:
    """A delivery, the asyncio task that runs it, and the state of both."""

    __slots__ = (
        "_thread",
        "asked",
        "begun",
        "cancelled",
        "delivery",
        "disturbed",
        "entered",
        "notes",
        "outcome",
        "overran",
        "overstayed",
        "stopped",
        "task",
    )

    def __init__(self, delivery: Delivery, notes: Notes | None = None) -> None:
        """`notes` writes the progress of the run; without it, reports are dropped."""
        self.delivery, self.notes = delivery, notes
        self.task: asyncio.Task[None] | None = None
        self.begun = 0.0
        """When the task made its first step, by the monotonic clock; 0 before."""
        self.entered = False
        """The runner has the job: its handler may have begun."""
        self.asked: str | None = None
        """Why the run was asked to stop; None while it may go on."""
        self.cancelled: str | None = None
        """As `asked`, but None when its executor stops: what `job.cancelled` shows."""
        self.overran = False
        """It was asked because its timeout was over."""
        self.overstayed = False
        """That was because its providers took too long to end."""
        self.stopped = False
        """Its executor stops, or another executor has the job. Then the job has no outcome, unless the handler chooses
        one."""
        self.disturbed = False
        """Other code has cancelled the run."""
        self._thread: int | None = None
        """The thread that runs its function, if one does."""
        self.outcome: Outcome | None = None
        """Set when the run is to be settled. From then on, the task cannot change the outcome any more."""

    @property
    def running(self) -> bool:
        """Whether the task goes on and has no outcome yet."""
        return self.task is not None and not self.task.done() and self.outcome is None

    @property
    def never_began(self) -> bool:
        """Whether other code cancelled the task before its first step. Then it has not given its slot back. (A run that
        has begun forgets its task at its end.)"""
        return self.task is not None and self.task.done()

    @property
    def cancelled_by_client(self) -> bool:
        """Whether it was asked to stop for good: then only its success counts."""
        return self.asked is not None and not (self.overran or self.stopped)

    def ask(self, why: str) -> bool:
        """Ask the run to stop; False when it was asked before. Code on the loop is cancelled, code in a thread can see
        `job.cancelled`. The workbench calls this: it also gives up a run that goes on."""
        if self.asked is not None:
            return False
        self.asked = self.cancelled = why
        self._cancel()
        return True

    def time_out(self) -> bool:
        """Ask the run to stop, because its timeout is over; False when it was asked before."""
        asked = self.ask(TIMEOUT)
        self.overran |= asked
        return asked

    def overstay(self) -> None:
        """Record that its providers took too long to end, unless it was asked to stop before."""
        self.overstayed = self.asked is None

    def stop(self, why: str) -> None:
        """Ask the run to stop, again if it was asked before, and to have no outcome."""
        self.stopped = True
        if self.asked is None:
            self.asked = why
            # A function in a thread that returned early because its executor stops would have succeeded.
            self.cancelled = why if why == LOST else None
        self._cancel()

    def _cancel(self) -> None:
        # A task that has not begun is not cancelled, because it would end without giving its slot back: its first step
        # checks `asked`.
        if self.begun and self.task is not None:
            self.task.cancel()

    def report(self, progress: Progress) -> bool:
        """Write this progress soon; see `Notes.report`."""
        return self.notes is not None and self.notes.report(self, progress)

    def enter_thread(self) -> None:
        """The current thread runs its function from now on."""
        self._thread = threading.get_ident()

    def leave_thread(self) -> None:
        """No thread runs its function any more."""
        self._thread = None

    @property
    def thread(self) -> int | None:
        """The thread that runs its function, if one does."""
        return self._thread

    def stack(self) -> str:
        """The calls in which the run waits, the innermost last: those of its task, and then those of its thread."""
        frames = [*frames_of_task(self.task), *_frames_of_thread(self._thread)]
        calls = [f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" for frame in frames]
        return " > ".join(calls[-_MOST_CALLS:])


class HeldJobs:
    """All jobs that the executor holds. The workbench adds them, the settler removes those that are settled."""

    def __init__(self) -> None:
        self.by_token: dict[Token, Held] = {}
        self.stuck: set[Held] = set()
        """Runs that went on after they were asked to stop: each keeps its slot until it really ends."""
        self._given_up = asyncio.Event()
        self.done = 0
        """Jobs whose outcome has been written or refused."""

    def tokens(self) -> list[Token]:
        """The tokens of all jobs held, without those that never began. May be called from another thread."""
        return [token for token, held in list(self.by_token.items()) if not held.never_began]

    def never_began(self) -> list[Token]:
        """The tokens of runs that were cancelled before their first step, and will never begin: their entries are to be
        handed back. May be called from another thread."""
        return [token for token, held in list(self.by_token.items()) if held.never_began]

    def entered(self, token: Token) -> bool:
        """Whether the handler of a job that is held may have begun."""
        held = self.by_token.get(token)
        return held is not None and held.entered

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the jobs that have no outcome yet."""
        return [held.task for held in self.by_token.values() if held.running and held.task is not None]

    async def one_ended(self, running: Iterable[asyncio.Task[Any]], timeout: float | None = None) -> None:
        """Returns when one of these tasks has ended, or a run was given up: its task may go on for ever."""
        self._given_up.clear()
        given_up = asyncio.create_task(self._given_up.wait())
        try:
            ends = {given_up, *running}
            await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            given_up.cancel()

    def note_stuck(self, held: Held) -> None:
        """Record that a run goes on although it was asked to stop."""
        self.stuck.add(held)
        self._given_up.set()

    def job_of(self, task: asyncio.Task[Any] | None) -> str | None:
        """Which job a task of the loop runs, for people; None when no task runs. May be called from another thread."""
        held = self.of_task(task)
        return None if held is None else f"{held.delivery.task} ({held.delivery.id})"

    def of_task(self, task: asyncio.Task[Any] | None) -> Held | None:
        """The run of a task of the loop; None when it runs no job. May be called from another thread."""
        if task is None:  # as `held.task` of a run that has ended
            return None
        return next((held for held in self.every() if held.task is task), None)

    def every(self) -> list[Held]:
        """All jobs held, and the runs that did not stop. May be called from another thread."""
        return list({*list(self.by_token.values()), *list(self.stuck)})

    def settled(self, settled: Settled, answer: Answer) -> bool:
        """Record that Redis has replied to an outcome: the executor does not hold the job any more. Returns whether
        the outcome counts: Redis has accepted it, and has not replied to it before."""
        held = self.by_token.pop(settled.delivery.token, None)
        self.done += 1
        if answer is Answer.LOST:
            report_lost(settled.delivery)
        elif answer is Answer.NEW_ERROR:
            report_new_error(settled.delivery, settled.outcome)
        return held is not None and answer is not Answer.LOST


def frames_of_task(task: asyncio.Task[Any] | None) -> Iterator[FrameType]:
    """The calls of users' code in which a task waits, from the outside in. `Task.get_stack` would show only the
    outermost."""
    return (frame for frame in calls_of_task(task) if not _is_ours(frame))


def calls_of_task(task: asyncio.Task[Any] | None) -> Iterator[FrameType]:
    """The calls in which a task waits, from the outside in."""
    waiting: Any = task.get_coro() if task is not None else None
    while waiting is not None:
        frame: FrameType | None = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is not None:
            yield frame
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)


def _frames_of_thread(ident: int | None) -> Iterable[FrameType]:
    """From the outside in, from the function of the task on."""
    # Python documents this function in spite of its name. It is the only way to read the stack of another thread.
    frame = sys._current_frames().get(ident) if ident is not None else None  # pyright: ignore[reportPrivateUsage]
    inner: list[FrameType] = []
    found: list[FrameType] = []
    while frame is not None:
        if _is_ours(frame):
            # The frames further out are those of the thread pool, up to the next of ours.
            found += inner
            inner = []
        else:
            inner.append(frame)
        frame = frame.f_back
    return reversed(found)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("fennelq.worker.")
