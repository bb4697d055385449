"""The supervisor's side of one executor process: starts, watches and ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace

from fennelq import clock, log
from fennelq.worker.processes.config import LIFESPAN_FAILED, ExecutorConfig
from fennelq.worker.processes.signals import Signal
from fennelq.worker.processes.totals_pipe import TotalsReader
from fennelq.worker.state import executor_name

_logger = log.get("fennelq.supervisor")
_CONNECTING = 30.0
LOOK_EVERY = 1.0
_LIVELY = 5.0
_REMIND_EVERY = 60.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The first asks to finish the running jobs, the second to hand them back. They are different signals, because the
kernel may merge two pending signals with the same number into one."""


class NotStarted(Exception):
    """The process could not be started; the text is the reason."""


class Child:
    """Starts a process, reads its signals and waits for its end; kills it when it has been silent for too long.

    The process is started without an `await`, so that no request to stop can arrive while it is half started and get
    lost. asyncio's subprocesses are not used for that reason, and because they need a descriptor or a thread per child:
    when none is left after the fork, the process would run without anything that watches it.
    """

    def __init__(self, config: ExecutorConfig, *, silence: float, quarantine: Callable[[], None]) -> None:
        self.name = executor_name()
        self._config, self._silence, self._quarantine = config, silence, quarantine
        self._process: subprocess.Popen[bytes] | None = None
        self._signalled = 0
        self._began = clock.monotonic()
        self._received: float | None = None
        self._reminders = 0
        self._ended = asyncio.Event()
        self.ready = False
        """Whether its last report was that Redis replies and jobs are read."""
        self.worked = False
        """Whether it has ever reported this."""
        self.totals = TotalsReader(self.name)
        """What it has counted, if metrics are on."""
        self.was_killed = False
        """Whether its supervisor has killed it."""
        self.fate = ""
        """How it ended, in words; empty while it lives."""

    async def run(self) -> int:
        """Start the process and wait for its end; returns the exit code, negative for a signal. Raises NotStarted."""
        with ExitStack() as pipes:
            try:
                self._process = self._start(pipes)
            except (OSError, subprocess.SubprocessError) as error:
                raise NotStarted(str(error)) from error
            code = await self._end(self._process)
        self.fate = self.fate or how(code)
        return code

    @property
    def pid(self) -> int | None:
        """The id of its process; None before the start."""
        return self._process.pid if self._process is not None else None

    @property
    def state(self) -> str:
        """One of `fennelq.model.metrics.STATES`."""
        if self._signalled:
            return "ending"
        return "ready" if self.ready else "unready" if self.worked else "starting"

    @property
    def alive(self) -> bool:
        """Whether its loop has reported lately. During the import of the app it has no loop yet, and need not report:
        an import may take any time."""
        return self._received is None or clock.monotonic() - self._received < _LIVELY

    def stop(self, *, now: bool = False) -> None:
        """Ask it to finish its jobs and end, or with `now` to hand them back and end. A repeated call changes
        nothing."""
        while self._running and self._signalled < (2 if now else 1):
            self._signal(_SIGNALS[self._signalled])
            self._signalled += 1

    def kill(self, why: str) -> None:
        """Kill it; other executors recover its jobs when its leases have run out."""
        if self._running:
            _logger.error("executor_killed", executor=self.name, pid=self.pid, why=why)
            self.fate, self.was_killed = f"killed by its supervisor: {why}", True
            self._signal(signal.SIGKILL)

    def collect(self) -> None:
        """Check whether this child has ended. Called when any child of the supervisor has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._ended.set()

    def ended_as_asked(self, code: int) -> bool:
        """Whether the request to stop has killed it before it had a handler for the signal. Then it had no jobs."""
        return self._signalled > 0 and not self.worked and code == -signal.SIGTERM

    @property
    def _running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    # From its start to its end

    def _start(self, pipes: ExitStack) -> subprocess.Popen[bytes]:
        reading, writing = os.pipe()
        pipes.callback(os.close, reading)
        with ExitStack() as until_started:
            until_started.callback(os.close, writing)
            totals = self._open_totals(pipes, until_started) if self._config.metrics else -1
            loop = asyncio.get_running_loop()
            loop.add_reader(reading, self._receive, reading)
            pipes.callback(loop.remove_reader, reading)
            return subprocess.Popen(
                self._command(writing, totals),
                pass_fds=[pipe for pipe in (self._config.lifeline, writing, totals) if pipe >= 0],
                # A Ctrl-C in the terminal reaches the whole group; only the supervisor signals executors, once.
                start_new_session=True,
            )

    def _open_totals(self, pipes: ExitStack, until_started: ExitStack) -> int:
        reading, writing = os.pipe()
        self.totals.open(reading)
        pipes.callback(self.totals.close)
        until_started.callback(os.close, writing)
        return writing

    def _command(self, writing: int, totals: int) -> list[str]:
        config = replace(self._config, name=self.name, signals=writing, totals=totals)
        return [
            sys.executable,
            "-m",
            "fennelq.worker.processes.process",
            config.to_text(),
            config.more_to_text(),
        ]

    async def _end(self, process: subprocess.Popen[bytes]) -> int:
        while (code := process.poll()) is None:
            self._look()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), LOOK_EVERY)
            self._ended.clear()
        return code

    def _look(self) -> None:
        if self._received is None:
            self._remind()
        elif clock.monotonic() - self._received > self._silence:
            self.kill(f"no sign of life for {self._silence:g} s")

    def _remind(self) -> None:
        """Log that the import goes on. It may take minutes, for example when it loads a model, so the process is not
        killed: its successor would only begin the same import again."""
        seconds = clock.monotonic() - self._began
        if seconds >= _REMIND_EVERY * (self._reminders + 1):
            self._reminders = int(seconds // _REMIND_EVERY)
            _logger.warning(
                "still_importing",
                executor=self.name,
                pid=self.pid,
                app=self._config.app,
                seconds=round(seconds),
            )

    def _receive(self, pipe: int) -> None:
        received = os.read(pipe, 4096)
        if not received:
            asyncio.get_running_loop().remove_reader(pipe)
            return
        # After the import the process gets more time, because it then connects, and may start an embedded server.
        self._received = clock.monotonic() + (_CONNECTING if received == Signal.IMPORTED else 0.0)
        if Signal.READY.value in received or Signal.NOT_READY.value in received:
            self.ready = received.rfind(Signal.READY.value) > received.rfind(Signal.NOT_READY.value)
            self.worked = self.worked or Signal.READY.value in received
        if Signal.STALLED.value in received:
            self.kill("its loop is stalled")
        if Signal.HEARTLESS.value in received:
            self.kill("the thread that renews its leases, or the one that watches it, has died")
        if Signal.QUARANTINE.value in received:
            self._quarantine()


def how(code: int) -> str:
    """An exit code in words."""
    if code == LIFESPAN_FAILED:
        return "its lifespan failed: lifespan_failed in its log has the error"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
