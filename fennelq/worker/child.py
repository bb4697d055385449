"""One executor process, as its supervisor sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace

from fennelq import clock, log
from fennelq.worker import signs
from fennelq.worker.executor import executor_name
from fennelq.worker.orders import Orders

_logger = log.get("fennelq.supervisor")
_STARTING = 30.0
_LOOK_EVERY = 1.0
_LIVELY = 5.0


class Child:
    """Starts a process, hears its signs, waits for its end; kills it when it has been silent for too long."""

    def __init__(self, orders: Orders, *, silence: float, quarantine: Callable[[], None]) -> None:
        self.name = executor_name()
        self._orders, self._silence, self._quarantine = orders, silence, quarantine
        self._process: asyncio.subprocess.Process | None = None
        self._asked = False
        self._heard = clock.monotonic() + _STARTING
        self.ready = False
        """Whether it last said that Redis answers and jobs are read."""
        self.worked = False
        """Whether it has ever said so."""
        self.fate = ""
        """How it ended, in words; empty while it lives."""

    async def run(self) -> int:
        """From its start to its end; answers the exit code, negative for a signal."""
        reading, writing = os.pipe()
        try:
            orders = replace(self._orders, name=self.name, signs=writing)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "fennelq.worker.process", orders.to_text()),
                pass_fds=(orders.lifeline, writing),
                # A Ctrl-C in the terminal reaches the whole group; executors are told by their supervisor, once.
                start_new_session=True,
            )
        finally:
            os.close(writing)
        loop = asyncio.get_running_loop()
        loop.add_reader(reading, self._hear, reading)
        try:
            code = await self._end(self._process)
        finally:
            loop.remove_reader(reading)
            os.close(reading)
        self.fate = self.fate or how(code)
        return code

    @property
    def alive(self) -> bool:
        """Whether its loop has moved lately; a process that is starting is given time."""
        return clock.monotonic() - self._heard < _LIVELY

    def stop(self) -> None:
        """Ask it to stop; asked again, it hurries."""
        if self._process is not None and self._process.returncode is None:
            # Two signals of one number can arrive as one.
            self._process.send_signal(signal.SIGINT if self._asked else signal.SIGTERM)
            self._asked = True

    def kill(self, why: str) -> None:
        """End it at once; its leases bring its jobs back."""
        if self._process is not None and self._process.returncode is None:
            _logger.error("executor_killed", executor=self.name, pid=self._process.pid, why=why)
            self.fate = f"killed by its supervisor: {why}"
            self._process.kill()

    async def _end(self, process: asyncio.subprocess.Process) -> int:
        ending = asyncio.ensure_future(process.wait())
        while not ending.done():
            await asyncio.wait([ending], timeout=_LOOK_EVERY)
            if not ending.done() and clock.monotonic() - self._heard > self._silence:
                self.kill(f"no sign of life for {self._silence:g} s")
        return await ending

    def _hear(self, pipe: int) -> None:
        said = os.read(pipe, 4096)
        if not said:
            asyncio.get_running_loop().remove_reader(pipe)
            return
        self._heard = clock.monotonic()
        if signs.READY in said or signs.NOT_READY in said:
            self.ready = said.rfind(signs.READY) > said.rfind(signs.NOT_READY)
            self.worked = self.worked or signs.READY in said
        if signs.STALLED in said:
            self.kill("its loop is stalled")
        if signs.QUARANTINE in said:
            self._quarantine()


def how(code: int) -> str:
    """An exit code in words."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
