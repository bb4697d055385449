"""Renews the leases of an executor's jobs, from a thread of its own: a handler that blocks the loop keeps its lease.

The thread has its own connection. It only reports what it finds; the loop decides what to do about it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fennelq import clock, crash, log
from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.keys import QueueKeys
from fennelq.worker.duties.per_queue import answered
from fennelq.worker.running.held import Token
from fennelq.worker.service import Complaints, Outage

_logger = log.get("fennelq.heartbeat")


def answer_within(lease: float) -> float:
    """Seconds to wait for a reply on which a lease depends: when one reply is lost, the next attempt must be answered
    before the lease has run out."""
    return max(lease / 4, min(1.0, lease / 3))


class Findings(NamedTuple):
    """What one round of beats found out."""

    lost: list[Token]
    stranded: list[Token]
    quarantined: int


class Beaten(NamedTuple):
    """A beat that was answered."""

    server_ms: int
    """The server's clock."""
    sent: float
    answered: float
    """Our monotonic clock before and after it: the server read its own clock in between."""

    def jump_since(self, before: Beaten) -> float:
        """Seconds by which the server's clock has moved more (or, below 0, less) than time has passed between two
        beats, at the least: round trips may be slow, and explain some of the difference."""
        moved = (self.server_ms - before.server_ms) / 1000
        return max(0.0, moved - (self.answered - before.sent)) + min(
            0.0, moved - (self.sent - before.answered)
        )


class Heartbeat:
    """The beating thread."""

    def __init__(
        self,
        *,
        broker: BlockingBroker,
        executor: str,
        lease: float,
        interval: float,
        queues: Callable[[], Sequence[QueueKeys]],
        held: Callable[[], Iterable[Token]],
        report: Callable[[Findings], None],
        outage: Outage | None = None,
    ) -> None:
        self._broker, self._executor, self._lease, self._interval = broker, executor, lease, interval
        self._queues, self._held, self._report = queues, held, report
        self._ended = threading.Event()
        self._complaints = Complaints("renewing leases", outage)
        self._thread = threading.Thread(target=self._run, name="fennelq-heartbeat", daemon=True)
        self._since = self._last = -1.0
        self._hold_off = lease
        self._latest: Beaten | None = None
        self._before: Beaten | None = None
        self._proven = Beaten(0, 0.0, 0.0)
        self.dead = False
        """Whether the thread ended without being told to: leases are no longer renewed."""

    @property
    def steady(self) -> bool:
        """True after a whole lease of beats that were answered (two, if it was paused before), the last of them not
        long ago, and during which the server's clock did not jump. An executor that is not steady does not judge
        others: it may have been cut off, and so may Redis have been."""
        now = clock.monotonic()
        return self._since >= 0 and now - self._since >= self._hold_off and now - self._last < self._lease / 2

    @property
    def answered(self) -> bool:
        """Whether the last beat was answered, not long ago."""
        return self._since >= 0 and clock.monotonic() - self._last < self._lease / 2 + self._interval

    def beaten(self) -> tuple[int, int]:
        """When the last beat was answered: by the server's clock, and how long ago by ours, in milliseconds. Read it
        before `steady`: a beat that makes this executor unsteady is published here only afterwards."""
        last = self._proven
        return last.server_ms, round((clock.monotonic() - last.answered) * 1000)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def end(self) -> None:
        """Beat no more."""
        self._ended.set()

    def beat(self) -> Findings:
        """Renew everything held, of all queues in one breath."""
        held: dict[str, list[tuple[str, str]]] = {}
        for queue, lane, entry in self._held():
            held.setdefault(queue, []).append((lane, entry))
        grace, queues = round(self._lease * 500), self._queues()
        beats = [
            verbs.executors.beat(keys, self._executor, grace, held.get(keys.queue, ())) for keys in queues
        ]
        sent = clock.monotonic()
        replies = self._broker.run_each(beats, timeout=answer_within(self._lease))
        answers = answered(queues, replies, self._complaints)
        if answers:
            self._latest = Beaten(answers[-1][1].now_ms, sent, clock.monotonic())
        found = Findings([], [], sum(answer.quarantined for _, answer in answers))
        for keys, answer in answers:
            found.lost.extend((keys.queue, *pair) for pair in answer.lost)
            found.stranded.extend((keys.queue, *pair) for pair in answer.stranded)
        return found

    def _run(self) -> None:
        try:
            self._beat_on()
        finally:
            # Not read from Thread.is_alive(): while a dying thread writes its traceback to a stderr that blocks, it
            # still counts as alive.
            self.dead = not self._ended.is_set()

    def _beat_on(self) -> None:
        pause = 0.0
        if crash.at is not None:
            crash.at("first_beat")
        while not self._ended.wait(pause):
            try:
                found = self.beat()
                self._beaten()
                self._complaints.over()
                self._report(found)
                pause = self._interval
            except Exception as error:
                self._since = -1.0
                pause = min(0.5, self._interval)
                self._complaints.about(error)

    def _beaten(self) -> None:
        now = clock.monotonic()
        if self._since < 0:
            self._since, self._hold_off = now, self._lease
        elif now - self._last > self._lease / 2:
            # It was paused itself, perhaps by a call that keeps the interpreter to itself. Then somebody else runs that
            # very call now and is as silent: to judge him after one lease would end in nobody ever finishing it.
            self._since, self._hold_off = now, 2 * self._lease
        elif self._clock_jumped():
            # Idle times have jumped with it, so everyone looks silent until their next beat.
            self._since, self._hold_off = now, self._lease
        self._last = now
        self._before = self._latest
        self._proven = self._latest or self._proven

    def _clock_jumped(self) -> bool:
        """Whether the server's clock was set between the last two beats. Less than a quarter of the lease is harmless:
        with the time between two beats it is still less than a lease."""
        if self._latest is None or self._before is None:
            return False
        jump = self._latest.jump_since(self._before)
        if abs(jump) <= self._lease / 4:
            return False
        _logger.warning("server_clock_jumped", seconds=round(jump, 3))
        return True
