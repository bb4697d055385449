"""Keeps a number of executor processes alive, and stops them in order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fennelq import clock, log
from fennelq.broker.keys import LANES
from fennelq.errors import ConfigurationError
from fennelq.model.routing import Routing

if TYPE_CHECKING:
    from fennelq.app import App
    from fennelq.worker.discovery import FoundApp

_logger = log.get("fennelq.supervisor")

_FIRST_PAUSE, _LONGEST_PAUSE, _HEALTHY_AFTER = 0.5, 30.0, 60.0
_EXIT_MARGIN = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a supervisor tells its executors."""

    app: str
    concurrency: int
    queues: str | None = None
    priorities: tuple[str, ...] = tuple(LANES)
    burst: bool = False
    grace: float = 25.0
    lifeline: int = -1
    """A pipe that the supervisor holds open: its end is the supervisor's end, however it died."""

    def to_text(self) -> str:
        """The orders as one argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Orders:
        """The orders that were given."""
        said = json.loads(text)
        return cls(**{**said, "priorities": tuple(said["priorities"])})


def serve(
    found: FoundApp,
    *,
    processes: int | None = None,
    concurrency: int | None = None,
    queues: str | None = None,
    priorities: str | None = None,
    burst: bool = False,
    grace: float | None = None,
) -> int:
    """Run a worker until it is told to stop; answers the exit code."""
    settings = found.app.settings
    Routing.parse(queues)
    orders = Orders(
        app=found.path,
        concurrency=concurrency or settings.concurrency,
        queues=queues,
        priorities=_priorities(priorities),
        burst=burst,
        grace=settings.grace_period if grace is None else grace,
    )
    count = processes or settings.processes or os.cpu_count() or 1
    # The embedded server is started, or the URL is not understood, here: once, and before any child.
    _say_hello(found.app, orders, count)
    return asyncio.run(Supervisor(orders, count).run())


class Supervisor:
    """The parent of the executors. It runs no job and never talks to Redis, so nothing can stall it."""

    def __init__(self, orders: Orders, count: int) -> None:
        self._orders, self._count = orders, count
        self._children: set[asyncio.subprocess.Process] = set()
        self._signals = 0
        self._told = asyncio.Event()

    async def run(self) -> int:
        """Until a signal, or in a burst until every executor is done; answers the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        reading, writing = os.pipe()
        try:
            codes = await asyncio.gather(*(self._keep_alive(reading) for _ in range(self._count)))
        finally:
            os.close(reading)
            os.close(writing)
        _logger.info("worker_stopped")
        return max(codes, default=0)

    def _on_signal(self) -> None:
        """The first asks the executors to finish what they run, the second to hand it back now."""
        self._signals += 1
        self._told.set()
        _logger.info("stopping" if self._signals == 1 else "stopping_now", executors=len(self._children))
        for child in self._children:
            self._pass_on(child)

    def _pass_on(self, child: asyncio.subprocess.Process) -> None:
        if child.returncode is None:
            child.send_signal(signal.SIGTERM)

    async def _keep_alive(self, lifeline: int) -> int:
        """One executor after another until told to stop; one that crashes is replaced after a growing pause."""
        pause = _FIRST_PAUSE
        while True:
            born = clock.monotonic()
            code = await self._run_child(lifeline)
            if self._told.is_set() or (self._orders.burst and code == 0) or code == ConfigurationExit:
                return 0 if self._told.is_set() else code
            if clock.monotonic() - born > _HEALTHY_AFTER:
                pause = _FIRST_PAUSE
            _logger.error("executor_crashed", exit=_how(code), restart_in=pause)
            try:
                await asyncio.wait_for(self._told.wait(), pause)
                return 0
            except TimeoutError:
                pause = min(pause * 2, _LONGEST_PAUSE)

    async def _run_child(self, lifeline: int) -> int:
        orders = Orders(**{**asdict(self._orders), "lifeline": lifeline})
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fennelq.worker.process", orders.to_text()),
            pass_fds=(lifeline,),
            # A Ctrl-C in the terminal reaches the whole group; executors are told by their supervisor, once.
            start_new_session=True,
        )
        self._children.add(child)
        try:
            for _ in range(self._signals):
                self._pass_on(child)
            return await self._exit_of(child)
        finally:
            self._children.discard(child)

    async def _exit_of(self, child: asyncio.subprocess.Process) -> int:
        waiting = asyncio.ensure_future(child.wait())
        told = asyncio.ensure_future(self._told.wait())
        await asyncio.wait([waiting, told], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        await asyncio.wait(
            [waiting], timeout=self._orders.grace + _EXIT_MARGIN if not waiting.done() else None
        )
        if not waiting.done():
            _logger.error("executor_killed", pid=child.pid, why="it did not stop within its grace period")
            child.kill()
        return await waiting


ConfigurationExit = 78
"""Exit code of an executor that cannot run with these settings: starting it again would not help."""


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"code {code}"


def _priorities(text: str | None) -> tuple[str, ...]:
    if not text:
        return tuple(LANES)
    said = tuple(part.strip() for part in text.split(","))
    if unknown := set(said) - set(LANES):
        raise ConfigurationError(f"priority {min(unknown)!r} is not one of high, normal, low")
    return said


def _say_hello(app: App, orders: Orders, count: int) -> None:
    from fennelq import __version__

    routing = Routing.parse(orders.queues)
    queues = orders.queues or ", ".join(sorted({task.queue for task in app.tasks.values()}))
    _logger.info(
        "worker_started",
        version=__version__,
        app=f"{app.name} ({orders.app})",
        redis=app.address.shown,
        queues=f"{queues} and every other in Redis" if routing.every else queues,
        tasks=len(app.tasks),
        processes=f"{count} x {orders.concurrency}",
    )
