"""The cells of an executor: at most one per slot, because each belongs to a run, or waits for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from fennelq import clock, log
from fennelq.app import App
from fennelq.lines import Seldom
from fennelq.model.job import JobFailure
from fennelq.model.outcome import Raised, RaisedReject, RaisedRetry, RateLimited, Snooze
from fennelq.model.progress import Progress
from fennelq.model.result_codec import Encoded
from fennelq.worker.cells.cell import Cell, CellDied
from fennelq.worker.cells.frames import LEAVING, Frame, packed
from fennelq.worker.cells.inside import head_of
from fennelq.worker.cells.launcher import Launcher, NoCell
from fennelq.worker.cells.preload import Preload
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.running.held import Held
from fennelq.worker.running.injecting import Limit

_logger = log.get("fennelq.worker")
IDLE: Final = 60.0
"""Seconds after which an idle cell ends."""
_LATER: Final = 5.0
"""Seconds after which a job comes back that got no cell."""
_TO_LEAVE: Final = 1.0
"""Seconds for idle cells to end at the stop."""


class TaskCrashed(Exception):
    """The process that ran the task has ended before the task."""


class Cells:
    """Runs the tasks that have `isolation="process"`."""

    def __init__(self, app: App, config: ExecutorConfig, idle: float = IDLE) -> None:
        self._app, self._config, self._idle_for = app, config, idle
        self._launcher: Launcher | None = None
        self._idle: list[Cell] = []
        self._seldom = Seldom()
        self._sweep: asyncio.TimerHandle | None = None
        if any(task.isolated for task in app.tasks.values()):
            Preload.of(app, config)

    @property
    def pids(self) -> list[int]:
        """The process ids of the living cells."""
        return [*self._launcher.cells] if self._launcher is not None else []

    async def ready(self) -> None:
        """Wait until a cell could be made. The import of the app, which may take long, does not count as time of a job.
        Raises Snooze when there is none: the job comes back later, without having used a try."""
        if not self._idle:
            try:
                await self._begun().ready()
            except NoCell as error:
                raise self._later(error) from None

    async def run(self, held: Held, time_out: Callable[[Held], None]) -> Encoded:
        """The encoded value that the task returns. Raises Raised for what it raises, TaskCrashed when its process dies,
        and Snooze when no process can be made. `time_out` is called when its providers take longer than `stop_grace`
        to end."""
        cell = await self._take()
        limit = Limit(held, self._app.settings.stop_grace)

        def hear(frame: Frame) -> None:
            if frame.head["kind"] == LEAVING:
                limit.start(time_out)
            else:
                held.report(Progress(*frame.head["progress"]))

        try:
            frame = await cell.call(packed(head_of(held.delivery), held.delivery.args), hear)
        except CellDied as died:
            raise TaskCrashed(f"the process of the task {died}") from None
        finally:
            limit.end()
            self._give_back(cell)
        return _value_of(frame)

    async def close(self) -> None:
        """End all cells, and the process that forks them."""
        if self._sweep is not None:
            self._sweep.cancel()
        if self._launcher is None:
            return
        for cell in self._idle:
            cell.retire()
        ends = [cell.ended(_TO_LEAVE) for cell in self._idle]
        self._idle = []
        try:
            await asyncio.gather(*ends)
        finally:
            self._launcher.close()

    def _begun(self) -> Launcher:
        if self._launcher is None:
            self._launcher = Launcher(Preload.of(self._app, self._config), self._app.settings.redis_url)
        return self._launcher

    async def _take(self) -> Cell:
        # The latest first, so that those that are not needed get old.
        while self._idle:
            if (cell := self._idle.pop()).answers():
                return cell
        try:
            return await self._begun().fork()
        except NoCell as error:
            raise self._later(error) from None

    def _later(self, error: NoCell) -> Snooze:
        if self._seldom(str(error)):
            _logger.warning("no_cell", why=str(error), doing=f"its jobs come back in {_LATER:g} s")
        return Snooze(_LATER)

    def _give_back(self, cell: Cell) -> None:
        if cell.is_usable:
            cell.rest()
            self._idle.append(cell)
            if self._sweep is None:
                self._sweep = asyncio.get_running_loop().call_later(self._idle_for, self._retire_the_old)

    def _retire_the_old(self) -> None:
        now, self._sweep = clock.monotonic(), None
        kept = [cell for cell in self._idle if cell.is_usable and now - cell.idle_since < self._idle_for]
        loop = asyncio.get_running_loop()
        for cell in set(self._idle).difference(kept):
            cell.retire()
            # What its jobs have shared may hang at its end.
            loop.call_later(self._app.settings.stop_grace, cell.kill)
        self._idle = kept
        if kept:
            oldest = min(cell.idle_since for cell in kept)
            left = self._idle_for - (now - oldest)
            self._sweep = loop.call_later(left, self._retire_the_old)


def _value_of(frame: Frame) -> Encoded:
    head: Any = frame.head
    kind = head["kind"]
    if kind == "returned":
        return Encoded(frame.body)
    if kind == "snooze":
        raise Snooze(head["delay"])
    if kind == "rate_limited":
        raise RateLimited(head["delay"])
    failure = JobFailure(*head["failure"])
    if kind == "retry":
        raise RaisedRetry(failure, head["delay"])
    if kind == "reject":
        raise RaisedReject(failure)
    raise Raised(failure, again=head["again"])
