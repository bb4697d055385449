"""The parent of the processes of `fennelq dev`. It never imports the app, so no code of the app can stop it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Final

from fennelq import clock
from fennelq.cli.dev.log import Log
from fennelq.cli.dev.part import Part
from fennelq.cli.dev.plan import Plan
from fennelq.cli.exits import Exit
from fennelq.worker.processes.reload import SourceWatch

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE: Final = 15.0
"""Seconds to end. A worker kills an executor that is stuck after 11."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
_LIVED: Final = 30.0
"""Seconds after which the end of a process counts as the first one."""
_WAITS: Final = (Exit.OK, Exit.CONFIGURATION)
"""Exit codes after which only a changed source file helps."""


class Parent:
    """Keeps the pages and the worker alive until a signal."""

    def __init__(self, plan: Plan, log: Log, shown: Callable[[], None]) -> None:
        """`shown` is called when the first page can be shown. Raises ConfigurationError."""
        self._plan, self._log, self._shown = plan, log, shown
        self._environment = plan.environment()
        self._sources = SourceWatch(plan.root)
        self._parts: set[Part] = set()
        self._stop, self._first_page = asyncio.Event(), asyncio.Event()
        self._change = asyncio.Event()
        """Set, and replaced by a new event, when source files change."""

    async def run(self) -> None:
        """Run until a signal. When it returns, every process has ended."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGCHLD, self._collect)
        self._plan.make_folder()
        watching = asyncio.create_task(self._watch())
        keeping = asyncio.create_task(self._keep())
        try:
            await asyncio.wait([watching, keeping], return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                await watching
            await keeping
        finally:
            # After a signal, this has been done already.
            if not self._stop.is_set():
                self._end()
            watching.cancel()
            await asyncio.gather(*(part.ended.wait() for part in self._parts))
            await asyncio.to_thread(self._plan.wait_for_server)
        self._log.write("dev", "everything has ended")

    # The end, and changes

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            for part in self._parts:
                part.stop()
        else:
            self._log.write("dev", f"{signal.Signals(number).name}: ending")
            self._end()

    def _end(self) -> None:
        self._stop.set()
        for part in self._parts:
            part.stop()
        asyncio.get_running_loop().call_later(_PATIENCE, self._kill)

    def _kill(self) -> None:
        for part in self._parts:
            self._log.write("dev", f"{part.name} did not end within {_PATIENCE:g} s: it is killed")
            part.kill()

    def _collect(self) -> None:
        for part in self._parts:
            part.collect()

    async def _watch(self) -> None:
        while True:
            files = await self._sources.changed()
            names = ", ".join(sorted(path.name for path in files)[:5])
            self._log.write("dev", f"{names} changed: the worker and the dashboard import it anew")
            change, self._change = self._change, asyncio.Event()
            change.set()

    async def _any(self, *events: asyncio.Event, within: float | None = None) -> None:
        """Wait for one of these, or for a signal."""
        waits = [asyncio.create_task(event.wait()) for event in (*events, self._stop)]
        try:
            await asyncio.wait(waits, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # The two processes

    async def _keep(self) -> None:
        await asyncio.gather(self._keep_pages(), self._keep_worker())

    async def _keep_pages(self) -> None:
        """Start the pages anew after each change. The old ones are shown until the new ones are ready, or for as long
        as the new ones cannot be imported."""
        pauses, old = _Pauses(), None
        while not self._stop.is_set():
            change = self._change
            new = self._start(
                "web", "fennelq.cli.dev.page", self._plan.page(), [self._plan.listening.fileno()]
            )
            await self._any(new.ready, new.ended, change)
            if new.ready.is_set():
                self._show_instead_of(old)
                old = new
                await self._any(new.ended, change)
                if new.ended.is_set():
                    old = None
            elif not new.ended.is_set() and not self._stop.is_set():
                new.kill()  # its import began before the change
            if new.ended.is_set() and not self._stop.is_set():
                await self._after(new, change, pauses, old)
                old = None if old is None or old.ended.is_set() else old

    def _show_instead_of(self, old: Part | None) -> None:
        if old is not None:
            old.stop()
        if self._first_page.is_set():
            self._log.write("dev", "the dashboard shows the changed code")
        else:
            self._first_page.set()
            self._log.write("dev", f"{self._plan.url} shows the app. Ctrl-C ends everything.")
            self._shown()

    async def _keep_worker(self) -> None:
        """Keep a worker alive. It begins after the first page, so that the page comes soon, and an error of the first
        import is printed once."""
        pauses = _Pauses()
        await self._any(self._first_page)
        while not self._stop.is_set():
            change = self._change
            part = self._start("worker", "fennelq.cli.dev.worker", self._plan.worker())
            await self._any(part.ended)
            if not self._stop.is_set():
                await self._after(part, change, pauses)

    async def _after(
        self, part: Part, change: asyncio.Event, pauses: _Pauses, old: Part | None = None
    ) -> None:
        """After the end of a process, wait until it is to be started again. `old` is shown instead."""
        if part.code in _WAITS:
            until = "" if old is None else ". Until then, the dashboard shows the code before the change"
            self._log.write(
                "dev", f"{part.name} ended ({part.fate}): a changed source file starts it again{until}"
            )
            await self._any(change, *([] if old is None else [old.ended]))
        else:
            pause = pauses.next()
            self._log.write("dev", f"{part.name} ended ({part.fate}): it starts again in {pause:g} s")
            await self._any(change, within=pause)

    def _start(self, name: str, module: str, words: Sequence[str], inherited: Sequence[int] = ()) -> Part:
        part = Part(name, self._log, self._environment)
        try:
            part.start(module, words, inherited)
        except OSError as error:  # descriptors, processes or memory are used up
            part.fail(str(error))
            return part
        self._parts.add(part)
        forgetting = asyncio.create_task(part.ended.wait())
        forgetting.add_done_callback(lambda _: self._parts.discard(part))
        return part


class _Pauses:
    """Pauses before a process is started again: longer and longer, until it has lived for a while."""

    def __init__(self) -> None:
        self._pause, self._at = 0.0, clock.monotonic()

    def next(self) -> float:
        """Seconds."""
        before, self._at = self._at, clock.monotonic()
        lived = self._at - before - self._pause > _LIVED
        self._pause = FIRST_PAUSE if lived else min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        return self._pause
