"""Renews the leases of an executor's jobs, from a thread of its own: a handler that blocks the loop keeps its lease.

The thread has its own connection. It only reports what it finds; the loop decides what to do about it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fennelq import clock, crash
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.keys import QueueKeys
from fennelq.broker.verbs import presence
from fennelq.service import Complaints
from fennelq.worker.held import Token
from fennelq.worker.per_queue import answered


class Findings(NamedTuple):
    """What one round of beats found out."""

    lost: list[Token]
    stranded: list[Token]
    quarantined: int


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
    ) -> None:
        self._broker, self._executor, self._lease, self._interval = broker, executor, lease, interval
        self._queues, self._held, self._report = queues, held, report
        self._ended = threading.Event()
        self._complaints = Complaints("renewing leases")
        self._thread = threading.Thread(target=self._run, name="fennelq-heartbeat", daemon=True)
        self._since = self._last = -1.0
        self._hold_off = lease
        self.dead = False
        """Whether the thread ended without being told to: leases are no longer renewed."""
        self.beaten_ms = 0
        """The server's clock when it answered last."""

    @property
    def steady(self) -> bool:
        """True after a whole lease of beats that were answered (two, if it was paused before), the last of them not
        long ago. Whoever is not steady does not judge others: it may have been cut off, and so may Redis have been."""
        now = clock.monotonic()
        return self._since >= 0 and now - self._since >= self._hold_off and now - self._last < self._lease / 2

    @property
    def answered(self) -> bool:
        """Whether the last beat was answered, not long ago."""
        return self._since >= 0 and clock.monotonic() - self._last < self._lease / 2 + self._interval

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
        verbs = [presence.beat(keys, self._executor, grace, held.get(keys.queue, ())) for keys in queues]
        replies = self._broker.run_each(verbs, timeout=max(1.0, self._lease / 4))
        answers = answered(queues, replies, self._complaints)
        found = Findings([], [], sum(answer.quarantined for _, answer in answers))
        for keys, answer in answers:
            found.lost.extend((keys.queue, *pair) for pair in answer.lost)
            found.stranded.extend((keys.queue, *pair) for pair in answer.stranded)
            self.beaten_ms = answer.now_ms
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
        self._last = now
