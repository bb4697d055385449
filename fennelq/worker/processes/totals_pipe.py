"""The pipe by which an executor sends what it has counted to its supervisor.

It is not the pipe of the signals: a message may be large, and a signal must not wait for room behind it. Totals are
sent, and not differences, so it does no harm if the supervisor does not take over a message.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from fennelq import clock, log
from fennelq.model.totals import MOST_NAMES, MOST_ROWS, Rows, Unreadable, from_line

_logger = log.get("fennelq.supervisor")

MOST_PER_SECOND: Final = 4 << 20
"""Bytes per second that a supervisor reads from one executor."""
LONGEST_LINE: Final = 1 << 20
MOST_UNREADABLE: Final = 100
"""Lines that cannot be read, after which the supervisor reads no more from this executor."""
_AT_ONCE: Final = 1 << 16


class TotalsPipe:
    """The executor's end; with -1, lines are discarded."""

    def __init__(self, pipe: int = -1) -> None:
        self._pipe, self._rest = pipe, b""
        if pipe >= 0:
            # A supervisor that is suspended must not block the loop.
            os.set_blocking(pipe, False)

    async def send(self, line: bytes) -> None:
        """Write a line, and before it the rest of a line whose writing was cancelled. Waits while the pipe is full; the
        lifeline reports the end of the supervisor."""
        self._rest += line
        while self._rest and self._pipe >= 0:
            try:
                self._rest = self._rest[os.write(self._pipe, self._rest) :]
            except BlockingIOError:
                await self._room()
            except OSError:
                self._pipe = -1

    async def _room(self) -> None:
        loop, room = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._pipe, room.set)
        try:
            await room.wait()
        finally:
            loop.remove_writer(self._pipe)


class TotalsReader:
    """The supervisor's end: what one executor has counted so far.

    Code of a job can write to every descriptor of its process. So what arrives is checked, no number ever falls, and
    neither much nor wrong data can stop the supervisor.
    """

    def __init__(self, executor: str) -> None:
        self.runs: Rows = {}
        self.sent: Rows = {}
        self.counters: dict[str, float] = {}
        self.gauges: Mapping[str, float] = {}
        self._executor, self._pipe, self._rest = executor, -1, b""
        self._read = self._unreadable = 0
        self._received = clock.monotonic()
        self._again: asyncio.TimerHandle | None = None

    @property
    def age(self) -> float:
        """Seconds since its last message, or since its start."""
        return clock.monotonic() - self._received

    def open(self, pipe: int) -> None:
        """Read from this pipe from now on."""
        os.set_blocking(pipe, False)
        self._pipe = pipe
        asyncio.get_running_loop().add_reader(pipe, self._receive)

    def close(self) -> None:
        """The executor has ended: read what is left, and close the pipe."""
        if self._again is not None:
            self._again.cancel()
        self._read = 0
        while self._pipe >= 0 and self._read < MOST_PER_SECOND and self._receive():
            pass
        self._leave()

    def _receive(self) -> bool:
        """Read once; returns whether there was something to read."""
        try:
            received = os.read(self._pipe, _AT_ONCE)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        if not received:
            self._leave()
            return False
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""
            self._refuse(f"a line is longer than {LONGEST_LINE:,} bytes")
        self._count(len(received))
        return True

    def _count(self, size: int) -> None:
        """After too much within a second, go on in the next one: the pipe fills up, and the executor waits."""
        self._read += size
        if self._again is None and self._pipe >= 0:
            self._again = asyncio.get_running_loop().call_later(1.0, self._begin_second)
        if self._read >= MOST_PER_SECOND and self._pipe >= 0:
            asyncio.get_running_loop().remove_reader(self._pipe)

    def _begin_second(self) -> None:
        self._read, self._again = 0, None
        if self._pipe >= 0:
            asyncio.get_running_loop().add_reader(self._pipe, self._receive)

    def _take(self, line: bytes) -> None:
        if self._pipe < 0:
            return
        try:
            message = from_line(line)
        except Unreadable as error:
            self._refuse(str(error))
            return
        self._received = clock.monotonic()
        self.gauges = message.gauges or self.gauges
        for name, value in message.counters.items():
            if name in self.counters or len(self.counters) < MOST_NAMES:
                self.counters[name] = max(value, self.counters.get(name, 0))
        _raise(self.runs, message.runs)
        _raise(self.sent, message.sent)

    def _refuse(self, why: str) -> None:
        self._unreadable += 1
        if self._unreadable == 1:
            _logger.warning("totals_unreadable", executor=self._executor, why=why)
        if self._unreadable >= MOST_UNREADABLE and self._pipe >= 0:
            self._leave()
            # They would stay as they are, and their age would be shown as the lag of the loop.
            self.gauges = {}
            _logger.warning("totals_refused", executor=self._executor, unreadable=self._unreadable)

    def _leave(self) -> None:
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            with suppress(ValueError, RuntimeError):
                asyncio.get_running_loop().remove_reader(pipe)
            os.close(pipe)


def _raise(known: Rows, rows: Rows) -> None:
    """Take over these rows; a number that is lower than before is not taken over."""
    for pair, row in rows.items():
        before = known.get(pair)
        if before is not None:
            known[pair] = [*map(max, before, row)]
        elif len(known) <= MOST_ROWS:
            known[pair] = row
