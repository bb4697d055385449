"""Speculation: gives runs that take much longer than usual a second copy, which another executor runs.

Only tasks with `speculate=` are looked at, so other tasks pay nothing. How long their runs usually take is known from
what the executor counts anyway. Twice a second it looks which of its runs have gone on for longer than that.

When a service becomes slow, all runs take longer than usual, and a second copy of each would double its load. So each
run that ends earns only a part of a second copy: with `speculate=0.95`, 20 runs earn one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.dispatch import by_queues, pages
from fennelq.broker.keys import QUARANTINE, queue_keys
from fennelq.model.job import Delivery
from fennelq.worker.bus import RunsDoubled
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import concerns_one_queue
from fennelq.worker.running.held import Held, Token
from fennelq.worker.running.reports import report_doubled
from fennelq.worker.state import State

INTERVAL = 0.5
"""Seconds between two looks at the runs."""
FIRST_PAUSE: Final = 5.0
"""Seconds until a second copy of the same run is asked for again; twice as many after each time."""
LEAST_RUNS: Final = 100
"""Runs of a task that must have ended before it is known how long they usually take."""
MOST_CREDIT: Final = 10.0
"""Second copies that may be made at once."""
_NEVER = 3600.0


@dataclass
class _Run:
    """A run of a task that speculates."""

    delivery: Delivery
    since: float
    """When it was seen first: at most INTERVAL after it began."""
    not_before: float = 0.0
    """When to ask for a second copy again. It may have come back to this executor, which drops it."""
    pause: float = FIRST_PAUSE

    def note_reply(self, now: float) -> None:
        """Redis has replied to the request for a second copy."""
        self.not_before = now + self.pause
        self.pause *= 2


class Speculator(Service):
    """Asks for second copies of the runs of one executor."""

    name = "speculator"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._parts = dict(state.app.speculating)
        self._credit = {task: _Credit(1 - part) for task, part in self._parts.items()}
        self._runs: dict[Token, _Run] = {}
        self._log = LogThrottle("speculating", state.outage)
        state.tally.keep(self._parts)

    async def tick(self) -> float:
        """Ask for a second copy of each run that takes too long."""
        if not self._parts:
            return _NEVER
        self._look()
        # Without another executor, the entries would only come back to this one.
        if self._runs and self._state.colleagues > 1:
            await self._double(list(self._late()))
        return INTERVAL

    def _look(self) -> None:
        """Remember the runs that go on, and forget the others."""
        now = clock.monotonic()
        self._runs = {
            token: self._runs.get(token) or _Run(held.delivery, now)
            for token, held in self._state.held.by_token.items()
            if held.delivery.task in self._parts and _may_double(held)
        }

    def _late(self) -> Iterable[_Run]:
        """The runs that take longer than usual, the oldest first, as many as there is credit for."""
        now, usual, chosen = clock.monotonic(), self._usual(), Counter[str]()
        for run in sorted(self._runs.values(), key=lambda run: run.since):
            task = run.delivery.task
            due = max(run.not_before, run.since + usual.get(task, inf))
            if now > due and self._credit[task].covers(chosen[task] + 1):
                chosen[task] += 1
                yield run

    def _usual(self) -> dict[str, float]:
        """Task → the seconds that most of its runs take at most. Tasks of which too few runs are known are missing."""
        usual: dict[str, float] = {}
        for task in {run.delivery.task for run in self._runs.values()}:
            runs = self._state.tally.runs_of(task)
            self._credit[task].earn(runs.number)
            seconds = runs.recent.percentile(100 * self._parts[task])
            if seconds is not None and runs.recent.count >= LEAST_RUNS:
                usual[task] = seconds
        return usual

    async def _double(self, late: Sequence[_Run]) -> None:
        """An error of one queue does not stop the others; those runs are asked for again."""
        for queue, runs in by_queues(late, lambda run: run.delivery.queue).items():
            for page in pages(runs):
                await self._double_page(queue, page)

    async def _double_page(self, queue: str, runs: Sequence[_Run]) -> None:
        entries = [(run.delivery.lane, run.delivery.entry) for run in runs]
        try:
            answers = await self._state.broker.run(
                verbs.runs.double(queue_keys(self._state.namespace, queue), self._state.name, entries)
            )
        except Exception as error:
            if not concerns_one_queue(error):
                raise
            self._log.warn(error, queue=queue)
            return
        now, made = clock.monotonic(), sum(map(bool, answers))
        self._state.bus.publish(RunsDoubled(made, len(answers) - made))
        for run, answer in zip(runs, answers, strict=True):
            run.note_reply(now)
            if answer:
                self._credit[run.delivery.task].spend()
                seconds = now - run.since
                report_doubled(run.delivery, seconds, self._usual().get(run.delivery.task, seconds))


class _Credit:
    """How many second copies of one task may be made."""

    def __init__(self, part: float) -> None:
        self._part = part
        self._seen = 0
        self.left = 0.0

    def earn(self, number: int) -> None:
        """So many runs have ended so far."""
        self.left = min(MOST_CREDIT, self.left + (number - self._seen) * self._part)
        self._seen = number

    def covers(self, copies: int) -> bool:
        """Whether there is credit for so many copies."""
        return self.left >= copies

    def spend(self) -> None:
        """Redis has made a copy. A copy that was only asked for costs nothing: the connection may be lost before."""
        self.left -= 1


def _may_double(held: Held) -> bool:
    return held.running and held.asked is None and held.delivery.lane != QUARANTINE
