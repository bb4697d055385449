"""The recorder: reads which jobs have ended, and writes them into the history.

It acknowledges entries after they are written, so after a crash they are read again: at least once. Writing a row
again changes nothing. So any number of recorders may run, and may be killed at any time.

Workers do not wait for it, and do not notice when the database is away: then the ends stay in Redis, which keeps the
latest 10,000 entries of each queue. When the recorder has missed some, it reports how many.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from fennelq import clock, log
from fennelq.broker import verbs
from fennelq.broker.keys import QueueKeys, queue_keys
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verbs.ends import End, EndedRecord, Ends, Missed
from fennelq.errors import BrokerUnavailable, HistoryRefused, HistoryUnavailable
from fennelq.lines import Seldom
from fennelq.manage.history.asking import StoreOutage, acknowledge, records_of
from fennelq.manage.history.choice import EVERY_JOB, Choice
from fennelq.manage.history.copying import Copying
from fennelq.manage.history.row import Row, row_of
from fennelq.manage.history.store import Gap, HistoryKeep, HistoryProgress, Store
from fennelq.manage.queues.queues import queues_of

if TYPE_CHECKING:
    from fennelq.app import App

A = TypeVar("A")

ENTRIES: Final = 40
ABANDONED: Final = 30.0
"""Seconds after which a recorder takes the entries that another one has read and not acknowledged."""
_LOOK_EVERY: Final = 1.0
_SHARE: Final = 50
"""A look at all queues is repeated after this many times what it has taken."""
_LONGEST_PAUSE: Final = 10.0
PAUSE: Final = 1.0
"""Seconds before the next attempt, when the database or Redis is away."""
_RENEW_EVERY: Final = 3600.0
"""Seconds, while the database is away. The streams expire a day after the latest look."""
_PRUNE_EVERY: Final = 600.0
_PRUNE_FOR: Final = 0.3
"""Seconds of pruning after each look."""
PRUNED_AT_ONCE: Final = 2000

_logger = log.get("fennelq.history")


@dataclass
class _Queue:
    """What a recorder knows of a queue."""

    keys: QueueKeys
    is_new: bool
    """Whether it has appeared since the recorder began."""
    missed: int = 0
    """The ends that were missed, as far as that has been written."""
    to_log: int = 0
    """The ends that were missed since the latest line of the log about them."""
    swept: float = -ABANDONED
    """When it last looked for entries of other recorders."""


class _Batch(NamedTuple):
    """What is written together."""

    queue: _Queue
    entries: Sequence[Ends]
    """Acknowledged when the rows are written; none when a further batch has the rest of their ends."""
    ends: Sequence[End]
    """Those of the entries."""
    chosen: Sequence[End]
    """Those that are recorded now."""
    records: Mapping[str, EndedRecord]
    gaps: Sequence[Gap]


class Recorder:
    """Records the ends of one app's jobs, until it is stopped."""

    def __init__(
        self,
        app: App,
        store: Store,
        choice: Choice = EVERY_JOB,
        keep: HistoryKeep | None = None,
        *,
        abandoned: float = ABANDONED,
        report: Callable[[HistoryProgress], None] | None = None,
    ) -> None:
        """`keep` says which rows it removes from time to time. `report` is called after each step."""
        self._app, self._store, self._choice, self._keep = app, store, choice, keep
        self._abandoned, self._report, self._may_log = abandoned, report, Seldom()
        # Its name must be new: entries of an earlier process with the same name would wait for ever.
        self._name = f"{socket.gethostname()[:60]}.{os.getpid()}.{secrets.token_hex(4)}"
        self._queues: dict[str, _Queue] = {}
        self._has_begun = False
        self._writing: asyncio.Task[bool] | None = None
        self._lost: BrokerUnavailable | None = None
        self._stopping = asyncio.Event()
        self._outage = StoreOutage()
        self._recorded = self._read = self._pruned = 0
        self._prune_at = self._renew_at = clock.monotonic()
        self._copying = Copying(app, store, self._until_possible, self._failed)

    @property
    def progress(self) -> HistoryProgress:
        """How far it has come."""
        missed = sum(queue.missed for queue in self._queues.values())
        return HistoryProgress(self._recorded, self._read, missed, self._pruned)

    def stop(self) -> None:
        """Ends it after the current step."""
        self._stopping.set()

    async def run(self) -> None:
        """Record until `stop`. Waits while the database or Redis is away; raises HistoryRefused when waiting does not
        help."""
        try:
            await self._until_possible(self._store.migrate)
            while not self._stopping.is_set():
                await self._step()
            await self._written()
        finally:
            await self._abandon()

    async def _step(self) -> None:
        began = clock.monotonic()
        more = await self._look()
        await self._copying.when_due()
        await self._prune()
        if not more:
            await self._written()
            took = clock.monotonic() - began
            await self._sleep(min(max(_LOOK_EVERY, _SHARE * took), _LONGEST_PAUSE))

    async def drain(self) -> None:
        """Record what there is now, and return. Raises BrokerUnavailable when Redis cannot be asked."""
        try:
            await self._until_possible(self._store.migrate)
            while not self._stopping.is_set() and await self._look():
                pass
            await self._written()
            await self._copying.now()
            await self._prune()
        finally:
            await self._abandon()
        if self._lost is not None:
            raise self._lost

    async def _abandon(self) -> None:
        """End the writing of rows when the recorder is cancelled or has failed. Their entries are read again."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def look(self) -> bool:
        """Record the next entries of each queue; returns whether there may be more."""
        try:
            return await self._look()
        finally:
            await self._written()

    async def _look(self) -> bool:
        """The same, but the latest rows may still be written. A queue whose keys are damaged does not stop the
        others."""
        more, self._lost = False, None
        try:
            await self._find_queues()
        except (BrokerUnavailable, ReplyError) as error:
            self._failed(error)
            return False
        for name, queue in self._queues.items():
            if self._stopping.is_set():
                return False
            try:
                more |= await self._look_at(queue)
            except (BrokerUnavailable, ReplyError) as error:
                self._failed(error, queue=name)
        return more

    def _failed(self, error: Exception, **facts: str) -> None:
        if isinstance(error, BrokerUnavailable):
            self._lost = error
        self._warn(error, **facts)

    async def _find_queues(self) -> None:
        known = await self._app.client.converse(queues_of(self._app))
        for name in sorted(known - self._queues.keys()):
            self._queues[name] = _Queue(queue_keys(self._app.namespace, name), self._has_begun)
        self._has_begun = True

    async def _look_at(self, queue: _Queue) -> bool:
        abandoned = None
        if clock.monotonic() - queue.swept >= self._abandoned:
            abandoned = round(self._abandoned * 1000)
        taken = await self._app.client.ask(
            verbs.ends.ends_take(queue.keys, self._name, ENTRIES, abandoned_ms=abandoned, begin=queue.is_new)
        )
        # While it takes entries of another recorder, it looks for further ones.
        if abandoned is not None and not taken.entries:
            queue.swept = clock.monotonic()
        gaps = list(self._gaps(queue, taken.missed))
        if taken.entries or gaps:
            await self._record(queue, taken.entries, gaps)
        return bool(taken.entries)

    async def _record(self, queue: _Queue, entries: Sequence[Ends], gaps: Sequence[Gap]) -> None:
        ends = [end for entry in entries for end in entry.each()]
        chosen = [end for end in ends if self._choice.has(queue.keys.queue, end)]
        while True:
            part, records = await self._app.client.converse(records_of(queue.keys, chosen))
            # While these rows are written, the next ones are read.
            if not await self._written():
                return
            chosen = chosen[len(part) :]
            if not chosen:
                break
            self._begin(_Batch(queue, (), (), part, records, ()))
        self._begin(_Batch(queue, entries, ends, part, records, gaps))

    def _begin(self, batch: _Batch) -> None:
        self._writing = asyncio.create_task(self._finish(batch))

    async def _written(self) -> bool:
        """Wait until the latest rows are written; False when it was stopped before. Raises what has failed."""
        writing, self._writing = self._writing, None
        return writing is None or await writing

    async def _finish(self, batch: _Batch) -> bool:
        """Write rows, and acknowledge their entries; False when it is stopped before."""
        written = await self._until_possible(lambda: self._write(batch))
        if written is None:
            return False
        self._recorded += written
        for gap in batch.gaps:
            batch.queue.missed = max(batch.queue.missed, gap.missed)
        try:
            await self._app.client.converse(acknowledge(batch.queue.keys, batch.entries, batch.ends))
        except (BrokerUnavailable, ReplyError) as error:  # the entries are read and acknowledged again
            self._failed(error, queue=batch.queue.keys.queue)
            return True
        self._read += len(batch.ends)
        if self._report:
            self._report(self.progress)
        return True

    def _write(self, batch: _Batch) -> int:
        """Runs in a thread, because the database may be slow."""
        queue, redaction = batch.queue.keys.queue, self._app.redaction
        rows = [row_of(queue, end, batch.records.get(end.key), redaction) for end in batch.chosen]
        try:
            return self._store.write(rows, batch.gaps)
        except (HistoryUnavailable, HistoryRefused):
            raise
        except Exception as error:  # the database does not take a row: the others are written
            self._warn(error, queue=queue)
            return sum(map(self._write_one, rows))

    def _write_one(self, row: Row) -> int:
        for part in (row, Row(*row[:4])):
            try:
                return self._store.write([part])
            except (HistoryUnavailable, HistoryRefused):
                raise
            except Exception as error:
                self._warn(error, job=row.id)
        return 0

    async def _until_possible(self, act: Callable[[], A]) -> A | None:
        """The result; None when it is stopped before the database can be used."""
        while True:
            try:
                result = await asyncio.to_thread(act)
            except HistoryUnavailable as error:
                self._outage.begin(error)
                await self._keep_streams()
                await self._sleep(PAUSE)
                if self._stopping.is_set():
                    return None
            else:
                self._outage.end()
                return result

    async def _keep_streams(self) -> None:
        """While the recorder waits, the streams must not expire."""
        if clock.monotonic() < self._renew_at:
            return
        self._renew_at = clock.monotonic() + _RENEW_EVERY
        with suppress(BrokerUnavailable, ReplyError):
            await self._find_queues()
        for queue in list(self._queues.values()):
            with suppress(BrokerUnavailable, ReplyError):
                await self._app.client.ask(verbs.ends.renew(queue.keys))

    async def _prune(self) -> None:
        if self._keep is None or clock.monotonic() < self._prune_at:
            return
        keep, now_ms, until = self._keep, clock.wall_ms(), clock.monotonic() + _PRUNE_FOR
        while True:
            done = await self._until_possible(lambda: self._store.prune(keep, now_ms, PRUNED_AT_ONCE))
            if done is None:
                return
            self._pruned += done.removed
            if not done.more:
                self._prune_at = clock.monotonic() + _PRUNE_EVERY
            # Then ends are recorded, and the rest is removed after the next look.
            if not done.more or clock.monotonic() >= until:
                return

    def _warn(self, error: Exception, **facts: str) -> None:
        if self._may_log((type(error), *facts.values())):
            _logger.warning(
                "trouble", what="history", error=f"{type(error).__name__}: {error}"[:500], **facts
            )

    def _gaps(self, queue: _Queue, missed: Missed) -> Iterator[Gap]:
        """The gap to write, if there is a new one. One that an earlier recorder has found is written again: it may have
        died before it had written it.

        While a worker of an earlier version ends jobs, each look finds a gap: they are logged together, now and then.
        """
        queue.to_log += missed.found
        if queue.to_log and self._may_log((Missed, queue.keys.queue)):
            since = clock.from_ms(missed.since_ms).isoformat(timespec="seconds")
            _logger.warning("history_gap", queue=queue.keys.queue, missed=queue.to_log, since=since)
            queue.to_log = 0
        if missed.number > queue.missed:
            yield Gap(queue.keys.queue, missed.since_ms, missed.until_ms, missed.number)

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
