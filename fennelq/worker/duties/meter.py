"""Adds the runs and the run and wait times that the executor has counted to those in Redis, once a minute for each busy
queue.

Nothing is written per job. The executor keeps what Redis has not confirmed, and sends it again under the same number,
so a lost reply neither loses counts nor adds them twice.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque

from fennelq import clock, log
from fennelq.broker import verbs
from fennelq.broker.dispatch import pages
from fennelq.broker.keys import queue_keys
from fennelq.broker.verb import Verb
from fennelq.broker.verbs.times import (
    ENDS,
    MINUTE_MS,
    RUN,
    WAIT,
    Report,
    durations_in,
    end_of,
    field_of,
    minute_of,
)
from fennelq.model.times import BUCKETS
from fennelq.worker.bus import JobHandedBack, JobLost, JobsTaken, RunsEnded
from fennelq.worker.duties.service import Service
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import concerns_one_queue
from fennelq.worker.state import State
from fennelq.worker.tally import Counted

_logger = log.get("fennelq.meter")

MINUTE = 60.0
MOST_AT_ONCE = 100
"""Queues per round trip."""
MOST_FIELDS = 1000
"""Fields per call, which take 2 ms of the server."""
MOST_UNSENT = 50_000
"""Fields that wait until Redis takes them: some 8 MB."""
LAST_REPORT = 2.0
"""Seconds for the report of an executor that ends."""


class Meter(Service):
    """Reports the counts of one executor."""

    name = "meter"

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._tally, self._broker = state.tally, state.broker
        self._kept_ms = round(state.settings.metrics_ttl * 1000)
        self._unsent = Unsent(state.name)
        self._log = LogThrottle("metering")
        self._collected = -MINUTE
        state.bus.subscribe(JobsTaken, self._tally.taken)
        state.bus.subscribe(RunsEnded, self._tally.ended)
        state.bus.subscribe(JobLost, self._tally.lost)
        state.bus.subscribe(JobHandedBack, self._tally.handed_back)

    async def tick(self) -> float:
        """Report what was counted since the last report. After an error, the next tick follows soon, and sends only
        what has got no reply."""
        if clock.monotonic() >= self._collected + MINUTE / 2:
            self._collect()
        await self._report()
        return MINUTE

    async def end(self) -> None:
        """Report the rest."""
        self._collect()
        try:
            async with asyncio.timeout(LAST_REPORT):
                await self._report()
        except Exception as error:
            self._log.warn(error)
        if lost := self._unsent.durations:
            _logger.warning("times_lost", durations=lost, why="the executor has ended before Redis took them")

    def _collect(self) -> None:
        before, self._collected = self._collected, clock.monotonic()
        # The middle of the time in which they were counted.
        minute = (
            self._tally.server_ms(self._collected - min(MINUTE, self._collected - before) / 2) // MINUTE_MS
        )
        counts = self._tally.take()
        uncounted = self._tally.take_uncounted()
        # Without a place to report to, the counts are only for the facts about the executor.
        if self._kept_ms:
            for queue, tasks in counts.items():
                for task, counted in tasks.items():
                    uncounted += self._unsent.add(queue, task, counted, minute)
        if uncounted:
            why = "too many tasks and queues were busy, or Redis did not take the times for too long"
            _logger.warning("times_not_counted", durations=uncounted, why=why)

    async def _report(self) -> None:
        """Send the reports that have got no reply, and then the counts since then."""
        await self._send()
        self._unsent.make_reports()
        await self._send()

    async def _send(self) -> None:
        """Send the first report of each queue, until none is left. An error of one queue does not stop the others; an
        error of Redis as a whole is raised at the end."""
        queues, errors = list(self._unsent.reports), list[BaseException]()
        while queues:
            sent: list[str] = []
            for page in pages(queues, MOST_AT_ONCE):
                replies = await self._broker.run_each([self._verb(queue) for queue in page])
                for queue, reply in zip(page, replies, strict=True):
                    if not isinstance(reply, BaseException):
                        self._unsent.confirm(queue)
                        sent.append(queue)
                    elif isinstance(reply, Exception) and concerns_one_queue(reply):
                        self._log.warn(reply, queue=queue)
                    else:
                        errors.append(reply)
            queues = [queue for queue in sent if queue in self._unsent.reports]
        if errors:
            raise errors[0]

    def _verb(self, queue: str) -> Verb[bool]:
        keys = queue_keys(self._state.namespace, queue)
        return verbs.times.meter(keys, self._unsent.reports[queue][0], self._kept_ms)


class Unsent:
    """The counts that Redis has not confirmed."""

    def __init__(self, executor: str) -> None:
        self._executor, self._life, self._number = executor, os.urandom(3).hex(), 0
        self._counts: dict[str, dict[str, int]] = {}
        """Queue → field → count. They are in no report yet."""
        self._fields = 0
        self.reports: dict[str, deque[Report]] = {}
        """Queue → reports without a reply, in the order in which they are to be sent. They do not change any more."""

    @property
    def durations(self) -> int:
        """The number of durations in all counts and reports."""
        reported = (report.counts for reports in self.reports.values() for report in reports)
        return sum(map(durations_in, (*self._counts.values(), *reported)))

    def add(self, queue: str, task: str, counted: Counted, minute: int) -> int:
        """Add the counts of a task, whose runs have ended in this minute since the epoch; returns the number of
        durations for which there is no room."""
        fields, refused = self._counts.setdefault(queue, {}), 0
        for kind, counts in ((RUN, counted.run_times), (WAIT, counted.waits[:BUCKETS])):
            for bucket, count in enumerate(counts):
                if count:
                    refused += self._add(fields, field_of(task, kind, bucket), int(count))
        for letter, kinds in ENDS.items():
            if ended := counted.ended(*kinds):
                self._add(fields, end_of(task, letter), ended)
                self._add(fields, minute_of(minute, letter), ended)
        return refused

    def make_reports(self) -> None:
        """Make reports of the counts of each queue that has none without a reply."""
        for queue in [queue for queue in self._counts if queue not in self.reports]:
            counts = self._counts.pop(queue)
            self._fields -= len(counts)
            # A queue whose counts found no room has none.
            if counts:
                self.reports[queue] = deque(map(self._report, pages(list(counts.items()), MOST_FIELDS)))

    def confirm(self, queue: str) -> None:
        """The first report of this queue has got a reply."""
        reports = self.reports[queue]
        reports.popleft()
        if not reports:
            del self.reports[queue]

    def _report(self, counts: list[tuple[str, int]]) -> Report:
        self._number += 1
        return Report(self._executor, self._life, self._number, dict(counts))

    def _add(self, fields: dict[str, int], field: str, count: int) -> int:
        if field not in fields:
            if self._fields >= MOST_UNSENT:
                return count
            self._fields += 1
        fields[field] = fields.get(field, 0) + count
        return 0
