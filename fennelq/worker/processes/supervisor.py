"""Keeps a number of executor processes alive, and stops them gracefully."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from fennelq import log
from fennelq.broker import verbs
from fennelq.broker.diagnosis import diagnose
from fennelq.broker.keys import AppKeys
from fennelq.executors import recent_of
from fennelq.model.exposition import Page
from fennelq.model.routing import Routing
from fennelq.worker.processes import pid_one, preflight
from fennelq.worker.processes.child import Child, NotStarted
from fennelq.worker.processes.config import CANNOT_RUN, DRAINED, RECYCLED, ExecutorConfig
from fennelq.worker.processes.health import Health
from fennelq.worker.processes.metrics import WorkerMetrics
from fennelq.worker.processes.reload import SourceWatch
from fennelq.worker.serving import check_limits, routing_of, warn_of_unfollowed_routes

if TYPE_CHECKING:
    from fennelq.app import App

_logger = log.get("fennelq.supervisor")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
_EXIT_MARGIN = 10.0
_NOT_STARTED = 1
_SHOWN = 10

Note = Callable[[str, str], None]
"""Records in Redis how an executor ended; may raise."""
Begin = Callable[[asyncio.Event], Awaitable[bool]]
"""Waits until executors can be started; False when it is stopped before."""


def serve(
    app: App,
    config: ExecutorConfig,
    *,
    processes: int | None = None,
    health: str | None = None,
    reload: bool = False,
    force: bool = False,
) -> int:
    """Run a worker until it is stopped; returns the exit code. Raises ConfigurationError when an executor could not run
    with this configuration."""
    check_limits(app)
    routing = routing_of(app, config)
    count = processes or _usual_number(app, config)
    # This starts the embedded server, or raises when redis_url is wrong: here it happens once, before any child starts.
    _ = app.address

    async def begin(stop: asyncio.Event) -> bool:
        server = await preflight.redis_replies(app, stop, force=force)
        if server is not None:
            _log_start(app, config, routing, count, server)
            preflight.warn_of_unknown_queues(app, config.queues)
            warn_of_unfollowed_routes(app)
        return server is not None

    supervisor = Supervisor(
        config,
        count,
        silence=app.settings.stall_timeout,
        note=_note_of(app),
        begin=begin,
        health=health,
        sources=SourceWatch(app.root) if reload else None,
    )
    return asyncio.run(supervisor.run())


class Supervisor:
    """The parent of the executors. It does not import or run the code of jobs on its loop, so no job can block it."""

    def __init__(
        self,
        config: ExecutorConfig,
        count: int,
        *,
        silence: float,
        note: Note,
        begin: Begin | None = None,
        health: str | None = None,
        sources: SourceWatch | None = None,
    ) -> None:
        self._config, self._count, self._silence, self._note = config, count, silence, note
        self._begin = begin
        self._metrics = WorkerMetrics(config.metrics)
        self._health = (
            Health(health, live=self._live, ready=self._ready, metrics=self._page) if health else None
        )
        self._sources = sources
        self._children: set[Child] = set()
        self._noting: set[asyncio.Task[None]] = set()
        self._signals = 0
        self._stop = asyncio.Event()
        self._change = asyncio.Event()
        """Set, and replaced by a new event, when source files change."""
        self._adopts = pid_one.adopts_orphans()
        self._quarantine: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Run until a signal, or in a burst until every executor is done; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGCHLD, self._on_child_ended)
        self._on_child_ended()  # orphans may have ended before
        reading, writing = os.pipe()
        self._config = replace(self._config, lifeline=reading)
        reloading = asyncio.create_task(self._reload())
        try:
            if self._health is not None:
                await self._health.start()
            codes: list[int] = []
            if self._begin is None or await self._begin(self._stop):
                codes = await asyncio.gather(*(self._keep_alive() for _ in range(self._count)))
            if self._quarantine is not None:
                await self._quarantine
        finally:
            reloading.cancel()
            if self._health is not None:
                self._health.close()
            os.close(reading)
            os.close(writing)
        _logger.info("worker_stopped")
        return max(codes, default=0)

    # Probes

    def _live(self) -> bool:
        return all(child.alive for child in self._children)

    def _ready(self) -> bool:
        return (
            bool(self._children) and not self._stop.is_set() and all(child.ready for child in self._children)
        )

    async def _page(self) -> Page:
        return self._metrics.page(self._children)

    # Signals and changes

    def stop(self) -> None:
        """The first call, by a signal, asks the executors to finish their jobs, the second to hand them back now. After
        the first, no executor is started."""
        self._signals += 1
        self._stop.set()
        for child in self._children:
            child.stop(now=self._signals > 1)
        if self._signals == 1:
            asyncio.get_running_loop().call_later(self._config.grace + _EXIT_MARGIN, self._kill_the_rest)
        _logger.info("stopping" if self._signals == 1 else "stopping_now", executors=len(self._children))

    def _kill_the_rest(self) -> None:
        for child in self._children:
            child.kill("it did not stop within its grace period")

    def _on_child_ended(self) -> None:
        # Collect the executors first. The remaining ended children are orphans, or an executor that has just ended.
        # `reap` does not collect such an executor: its end causes another signal, and then it is collected here.
        for child in self._children:
            child.collect()
        if self._adopts:
            pid_one.reap({child.pid for child in self._children if child.pid is not None})

    async def _reload(self) -> None:
        """When a source file changes, stop the executors gracefully. Their successors import the changed file."""
        while self._sources is not None:
            files = await self._sources.changed()
            _logger.info("reloading", changed=sorted(path.name for path in files)[:5])
            change, self._change = self._change, asyncio.Event()
            change.set()
            for child in self._children:
                child.stop()

    # Executors

    async def _keep_alive(self) -> int:
        """Run one executor after another until stopped. One that has worked is replaced soon, because jobs wait. One
        that ends before is started less and less often."""
        pause = 0.0
        while not self._stop.is_set():
            change = self._change
            code, worked = await self._run(self._config)
            if self._stop.is_set():
                break
            if code == RECYCLED or (code == 0 and (not self._config.burst or change.is_set())):
                continue
            if code == CANNOT_RUN and self._sources is not None:
                await self._stopped_or(change)
                continue
            if code in (0, CANNOT_RUN):
                return code
            if code == DRAINED:
                return 0
            pause = FIRST_PAUSE if worked else min(max(pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
            await self._pause(pause)
        return 0

    async def _run(self, config: ExecutorConfig) -> tuple[int, bool]:
        """Start an executor and wait for its end: its exit code, and whether it has worked."""
        child = Child(config, silence=self._silence, quarantine=self._open_quarantine)
        self._children.add(child)
        try:
            code = await child.run()
        except NotStarted as error:
            # For example, descriptors, processes or memory are used up. The other executors go on.
            _logger.error("executor_not_started", executor=child.name, error=str(error))
            self._metrics.add_unstarted()
            return _NOT_STARTED, False
        finally:
            self._children.discard(child)
        if config.metrics:
            self._metrics.add_ended(child, code)
        if child.ended_as_asked(code):
            return 0, False
        if code == DRAINED:
            _logger.info("executor_drained", executor=child.name, left=len(self._children))
        elif code not in (0, CANNOT_RUN, RECYCLED):
            _logger.error("executor_crashed", executor=child.name, fate=child.fate)
            noting = asyncio.create_task(self._note_death(child))
            self._noting.add(noting)
            noting.add_done_callback(self._noting.discard)
        return code, child.worked

    async def _note_death(self, child: Child) -> None:
        try:
            await asyncio.to_thread(self._note, child.name, child.fate)
        except Exception as error:  # for example no thread could be started
            _logger.warning("death_not_noted", executor=child.name, error=str(error))

    async def _pause(self, seconds: float) -> None:
        """Wait, but end at once when stopped, or when a changed file may have removed the cause of a crash."""
        await self._stopped_or(self._change, seconds)

    async def _stopped_or(self, change: asyncio.Event, timeout: float | None = None) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self._stop, change)]
        try:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _open_quarantine(self) -> None:
        """Start an executor for jobs that may have killed theirs. It runs one at a time, so that a job can kill only
        itself. Its death is expected and does not delay the restart of other executors."""
        # A worker that takes no jobs leaves this to the others: their beats find the jobs in quarantine as well.
        wanted = self._config.consumes and not self._stop.is_set()
        if wanted and (self._quarantine is None or self._quarantine.done()):
            self._quarantine = asyncio.create_task(self._run_quarantine())

    async def _run_quarantine(self) -> None:
        if not self._stop.is_set():  # a signal may have come before this task began
            await self._run(self._config.for_quarantine())


def _note_of(app: App) -> Note:
    def note(executor: str, fate: str) -> None:
        try:
            recent_ms = recent_of(app.settings.lease)
            app.blocking.run(verbs.executors.died(AppKeys(app.namespace), executor, fate, recent_ms))
        except Exception as error:
            raise diagnose(app.address, error).error() from error

    return note


class Names(list[str]):
    """Names for a log line: a console shows the first ten, JSON all."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(sorted(names))

    def __repr__(self) -> str:
        more = f" and {len(self) - _SHOWN} more" if len(self) > _SHOWN else ""
        return f"{', '.join(self[:_SHOWN])}{more}"


def _usual_number(app: App, config: ExecutorConfig) -> int:
    """The number of processes when the command line has none. Without jobs, one is enough."""
    return (app.settings.processes or os.cpu_count() or 1) if config.consumes else 1


def _log_start(app: App, config: ExecutorConfig, routing: Routing, count: int, server: str) -> None:
    from fennelq import __version__

    queues = config.queues or ", ".join(
        sorted(routing.weights or {task.queue for task in app.tasks.values()})
    )
    facts: dict[str, object] = {} if config.consumes else {"takes": "no jobs (--no-consume)"}
    if config.rate is not None:
        facts["takes"] = f"at most {count} x {config.rate:g} jobs per second"
    _logger.info(
        "worker_started",
        version=__version__,
        app=f"{app.name} ({config.app})",
        redis=f"embedded, {app.address.shown}" if app.settings.embedded else app.address.shown,
        server=server,
        queues=f"{queues} and every other in Redis" if routing.every else queues,
        tasks=Names(app.tasks),
        processes=f"{count} x {config.concurrency}" if config.consumes else str(count),
        **facts,
    )
