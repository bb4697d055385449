"""Renews the leases of an executor's jobs in a thread, so that a handler that blocks the loop does not lose its lease.

The thread has its own connection. It only publishes its findings; the parts on the loop act on them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from fennelq import clock, crash
from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.keys import queue_keys
from fennelq.worker.bus import BellConnected, CancelRequested, EntriesStranded, LeasesLost
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import answered
from fennelq.worker.processes.signals import Signal
from fennelq.worker.running.held import Token
from fennelq.worker.state import State
from fennelq.worker.threads.lease import Beaten

_UNSURE_LEASES = 2
_MOST_OTHERS = 500
"""Queues per beat in which the executor holds no job, at most."""


class BeatResult(NamedTuple):
    """The findings of one round of beats."""

    lost: list[Token]
    """Jobs that this executor holds, but that other executors have taken."""
    stranded: list[Token]
    """Entries that are pending on this executor in Redis, but that it does not hold."""
    quarantined: int
    """Jobs that wait in quarantine."""
    beaten: Beaten | None = None
    stopping: Sequence[CancelRequested] = ()
    """Jobs that this executor holds, and that were asked to stop."""


class Heartbeat:
    """The thread that renews the leases."""

    def __init__(self, state: State, broker: BlockingBroker) -> None:
        self._state, self._lease, self._broker = state, state.lease, broker
        self._round: Iterator[str] = iter(())
        """The queues that are left to beat in this round."""
        self._log = LogThrottle("renewing leases", state.outage)
        state.bus.subscribe(BellConnected, self._look_soon)
        self._thread = threading.Thread(target=self._run, name="fennelq-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Stop renewing the leases."""
        self._lease.end()

    def beat(self) -> BeatResult:
        """Renew the leases of all jobs held, in one round trip."""
        held: dict[str, list[tuple[str, str]]] = {}
        for queue, lane, entry in self._state.held.tokens():
            held.setdefault(queue, []).append((lane, entry))
        names = {*held, *self._unsure(), *self._others()}
        queues = [queue_keys(self._state.namespace, name) for name in sorted(names)]
        grace = round(self._lease.length * 500)
        beats = [
            verbs.executors.beat(keys, self._state.name, grace, held.get(keys.queue, ())) for keys in queues
        ]
        sent = clock.monotonic()
        if not beats:
            # It serves no queue yet.
            now_ms = self._broker.ask(verbs.server.now(), timeout=self._lease.reply_timeout)
            return BeatResult([], [], 0, Beaten(now_ms, sent, clock.monotonic()))
        replies = self._broker.run_each(beats, timeout=self._lease.reply_timeout)
        answers = answered(queues, replies, self._log)
        beaten = Beaten(answers[-1][1].now_ms, sent, clock.monotonic()) if answers else None
        quarantined = sum(answer.quarantined for _, answer in answers)
        stopping = tuple(
            CancelRequested((keys.queue, lane, entry), why)
            for keys, answer in answers
            for lane, entry, why in answer.stopping
        )
        found = BeatResult([], self._state.held.never_began(), quarantined, beaten, stopping)
        for keys, answer in answers:
            found.lost.extend((keys.queue, *pair) for pair in answer.lost)
            found.stranded.extend((keys.queue, *pair) for pair in answer.stranded)
        return found

    def _unsure(self) -> list[str]:
        """The queues from which a fetch got no reply: they may have entries for this executor. Such an entry is
        reported when it has been pending for half a lease."""
        now = clock.monotonic()
        for queue, since in list(self._state.unsure.items()):
            if now - since > _UNSURE_LEASES * self._lease.length:
                self._state.forget_unsure(queue, since)
        return list(self._state.unsure)

    def _others(self) -> list[str]:
        """Some of the other queues. Those from which it has taken jobs all get their turn within half a lease, or later
        if there are very many. So an entry that the executor does not know it has taken is handed back before its lease
        runs out. Elsewhere it has none, and one queue per beat shows whether it may beat at all."""
        number = len(self._state.routing.weights)
        share = min(1.0, 2 * self._lease.interval / self._lease.length)
        page = min(_MOST_OTHERS, math.ceil(number * share))
        some = list(islice(self._round, page))
        if not some:
            self._round = iter(list(self._state.routing.weights))
            some = list(islice(self._round, page))
        return [queue for queue in some if queue in self._state.read] or some[:1]

    def _run(self) -> None:
        try:
            self._beat_on()
        finally:
            self._lease.thread_ended()

    def _beat_on(self) -> None:
        pause = 0.0
        if crash.at is not None:
            crash.at("first_beat")
        while not self._lease.ends_within(pause):
            try:
                found = self.beat()
                self._lease.renewed(found.beaten)
                self._log.over()
                self._publish(found)
                pause = self._lease.interval
            except Exception as error:
                if self._lease.ended.is_set():
                    return  # the executor ended during this beat, and its loop, which would get the facts, is closed
                self._lease.missed()
                pause = min(0.5, self._lease.interval)
                self._log.warn(error)

    def _look_soon(self, bell: BellConnected) -> None:
        """The messages about these queues arrive from now on. An earlier one may have asked to stop a job, so beat at
        once."""
        if not {queue for queue, _, _ in self._state.held.tokens()}.isdisjoint(bell.queues):
            self._lease.soon.set()

    def _publish(self, found: BeatResult) -> None:
        if found.quarantined:
            self._state.signals.send(Signal.QUARANTINE)
        if found.lost:
            self._state.bus.publish_from_thread(LeasesLost(found.lost))
        if found.stranded:
            self._state.bus.publish_from_thread(EntriesStranded(found.stranded))
        for request in found.stopping:
            self._state.bus.publish_from_thread(request)
