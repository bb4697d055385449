"""The reader of an executor: takes jobs when there are free slots, blocks when there is nothing to take.

One reader for all queues and lanes. It never reads more than can start at once, so a job never waits in a
busy executor while another one is idle.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fennelq import clock, crash, log
from fennelq.broker.broker import ANSWER_TIMEOUT, Broker
from fennelq.broker.keys import GROUP, QueueKeys, queue_keys
from fennelq.broker.trouble import Trouble, classify
from fennelq.broker.verb import Word, text
from fennelq.broker.verbs import census, lifecycle, presence
from fennelq.broker.verbs.lifecycle import Catch, Lifetimes, TooNew, Woken
from fennelq.model.job import Delivery
from fennelq.model.routing import Routing
from fennelq.service import Complaints, Outage
from fennelq.worker.held import Token
from fennelq.worker.per_queue import concerns_one_queue
from fennelq.worker.slots import Slots

_logger = log.get("fennelq.consumer")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_FIRST_ASIDE, _LONGEST_ASIDE = 0.5, 30.0
_NOTHING_TO_READ = 0.25


class Consumer:
    """Reads for one executor."""

    def __init__(
        self,
        *,
        app: str,
        name: str,
        broker: Broker,
        lanes: Sequence[str],
        lifetimes: Lifetimes,
        slots: Slots,
        start: Callable[[Delivery], None],
        holds: Callable[[Token], bool],
        due: Callable[[float], None],
        too_new: Callable[[str, list[TooNew]], None],
        block_ms: int,
        patience: float = ANSWER_TIMEOUT,
        outage: Outage | None = None,
    ) -> None:
        """`block_ms` and `patience` together are the longest that a lost reply can hold up a read: what it stranded is
        to be handed back, at no cost, before others find that its lease ran out."""
        self._app, self._name, self._broker = app, name, broker
        self._lanes, self._lifetimes = lanes, lifetimes
        self._block_ms, self._patience = block_ms, patience
        self._slots, self._start, self._holds, self._due = slots, start, holds, due
        self._too_new = too_new
        self._doorbell = broker.doorbell()
        self._routing = Routing({})
        self._opened: set[str] = set()
        self._known: set[str] = set()
        self._suspects: set[Token] = set()
        self._ringing: asyncio.Task[None] | None = None
        self._stopping = False
        self._blocking = False
        self._aside = Aside()
        self._pause = _FIRST_PAUSE
        self._complaints = Complaints("reading", outage)
        self._round = self._drained_in = 0
        self.drained = asyncio.Event()
        """Set while everything that was ready has been taken."""
        self.connected = False

    @property
    def queues(self) -> list[QueueKeys]:
        """The queues it serves."""
        return [queue_keys(self._app, queue) for queue in self._routing.weights]

    async def serve(self, routing: Routing) -> None:
        """Serve these queues from now on."""
        if routing != self._routing:
            self._routing = routing
            await self._doorbell_rings()

    async def run(self) -> None:
        """Read until `stop`. Trouble with Redis is waited out: jobs run on, reading resumes by itself."""
        while not self._stopping:
            try:
                await self._turn()
            except Exception as error:
                self.connected = False
                await self._trouble(error)

    def suspect(self, stranded: Iterable[Token]) -> None:
        """These entries are ours in Redis, but nothing here runs them. They are handed back between two reads, when no
        reply can bring them any more; doing it at once would take jobs from a reply that is under way, for ever."""
        self._suspects.update(stranded)
        if self._suspects:
            self._slots.notify()
            if self._blocking:
                self._ringing = asyncio.create_task(self._doorbell_rings())

    async def look_again(self) -> None:
        """Returns when everything that was ready at the time of this call has been taken."""
        now = self._round
        while self._drained_in <= now:
            self.drained.clear()
            await self._doorbell_rings()
            await self.drained.wait()

    def halt(self) -> None:
        """From this moment on, nothing more is started."""
        self._stopping = True

    async def stop(self, reading: asyncio.Task[None]) -> None:
        """Stop reading. A blocked read is woken, never cancelled: that would strand what it delivers."""
        self.halt()
        while not reading.done():
            self._slots.notify()
            await self._doorbell_rings()
            await asyncio.wait([reading], timeout=0.05)

    async def _turn(self) -> None:
        if self._suspects:
            await self._hand_back_stranded()
        if self._slots.free <= 0:
            await self._slots.changed()
            return
        self._round += 1
        drained = await self._fetch_round()
        self._pause = _FIRST_PAUSE
        self.connected = True
        self._complaints.over()
        if drained:
            self._drained_in = self._round
            self.drained.set()
            await self._block()

    async def _fetch_round(self) -> bool:
        """Fill the free slots from the queues in order; True when all of them were found empty."""
        drained = True
        for queue in self._routing.order():
            if self._slots.free <= 0:
                return False
            if not self._aside.has(queue):
                drained = await self._fetch_from(queue_keys(self._app, queue)) and drained
        return drained and not self._stopping

    async def _fetch_from(self, keys: QueueKeys) -> bool:
        """Whether this queue is drained. One whose keys are damaged counts as drained and is put aside for a while: the
        others are read meanwhile."""
        try:
            catch = await self._fetch(keys)
        except Exception as error:
            if not concerns_one_queue(error):
                raise
            await self._put_aside(keys, error)
            return True
        self._aside.forget(keys.queue)
        return catch.drained

    async def _put_aside(self, keys: QueueKeys, error: Exception) -> None:
        self._opened.discard(keys.queue)
        seconds = self._aside.put(keys.queue)
        damage = await self._damage(keys)
        self._complaints.about(error, queue=keys.queue, damage=damage, looks_again_in=round(seconds, 1))

    async def _damage(self, keys: QueueKeys) -> str:
        """Which keys of the queue are damaged; empty also when that cannot be looked up."""
        try:
            return "; ".join(found for found in await self._broker.ask_all(census.damage(keys)) if found)
        except Exception:  # a user who may not touch the queue may not ask for types either
            return ""

    async def _fetch(self, keys: QueueKeys, woken: Sequence[Woken] = ()) -> Catch:
        if keys.queue not in self._opened:
            await self._open(keys)
        verb = lifecycle.fetch(
            keys,
            consumer=self._name,
            free=min(self._slots.free, lifecycle.MOST_JOBS),
            lanes=self._lanes,
            lifetimes=self._lifetimes,
            woken=woken,
        )
        catch = await self._broker.run(verb, self._patience)
        if catch.deliveries:
            self.drained.clear()
            await self._take(keys, catch.deliveries)
        if catch.due_ms >= 0:
            self._due(catch.due_ms / 1000)
        self._too_new(keys.queue, catch.too_new)
        if catch.groups_missing:
            self._opened.discard(keys.queue)
        return catch

    async def _take(self, keys: QueueKeys, deliveries: list[Delivery]) -> None:
        if self._stopping:
            await self._broker.run(
                lifecycle.release(keys, [(d.lane, d.entry) for d in deliveries], "unstarted")
            )
            return
        for delivery in deliveries:
            self._start(delivery)

    async def _hand_back_stranded(self) -> None:
        suspects, self._suspects = self._suspects, set()
        for keys in self.queues:
            entries = [t[1:] for t in suspects if t[0] == keys.queue and not self._holds(t)]
            if entries and not self._aside.has(keys.queue):
                await self._release_stranded(keys, entries)

    async def _release_stranded(self, keys: QueueKeys, entries: Sequence[tuple[str, str]]) -> None:
        try:
            await self._broker.run(lifecycle.release(keys, entries, "stranded"))
        except Exception as error:
            # The next beat names them again.
            if not concerns_one_queue(error):
                raise
            await self._put_aside(keys, error)

    async def _open(self, keys: QueueKeys) -> None:
        made = await self._broker.run(presence.open_queue(keys))
        if made and keys.queue in self._known:
            # A person has deleted the lanes, or Redis came back without its data: whatever was in them is gone.
            _logger.warning("groups_made_anew", queue=keys.queue, lanes=made)
        self._known.add(keys.queue)
        self._opened.add(keys.queue)
        if crash.at is not None:
            crash.at("opened")

    async def _block(self) -> None:
        """Wait until something arrives in any lane. One entry is enough: the next fetch takes the rest."""
        queues = [keys for keys in self.queues if not self._aside.has(keys.queue)]
        streams = [keys[lane] for keys in queues for lane in self._lanes]
        words: list[Word] = ["XREADGROUP", "GROUP", GROUP, self._name, "COUNT", 1, "BLOCK", self._block_ms]
        if self._stopping:
            return
        if not streams:
            await asyncio.sleep(_NOTHING_TO_READ)
            return
        self._blocking = True
        try:
            reply = await self._doorbell.wait(
                [*words, "STREAMS", *streams, *(">" for _ in streams)], self._block_ms, self._patience
            )
        finally:
            self._blocking = False
        if reply:
            await self._woken(reply)

    async def _woken(self, reply: Any) -> None:
        """What the block came back with is ours already: claim it, hand back what there is no slot for."""
        if crash.at is not None:
            crash.at("woken")
        entries = _by_queue(reply, self.queues)
        for keys, found in entries:
            room = 0 if self._stopping else self._slots.free
            try:
                if found[:room]:
                    await self._fetch(keys, found[:room])
                if found[room:]:
                    await self._broker.run(lifecycle.release(keys, [(w.lane, w.entry) for w in found[room:]]))
            except Exception as error:
                # The entry is stranded now, and is handed back when the queue can be read again.
                if not concerns_one_queue(error):
                    raise
                await self._put_aside(keys, error)

    async def _doorbell_rings(self) -> None:
        if self._blocking:
            try:
                await self._doorbell.wake()
            except Exception as error:
                self._complaints.about(error)

    async def _trouble(self, error: Exception) -> None:
        if classify(error) is Trouble.GROUP or concerns_one_queue(error):
            # A blocked read does not tell which of its streams is meant: each queue is opened anew, and the one that
            # cannot be is put aside.
            self._opened.clear()
            if classify(error) is Trouble.GROUP:
                return
        self._complaints.about(error, running=self._slots.taken)
        # A connection that was cut once is made again almost at once; a server that stays away is asked less and less.
        await asyncio.sleep(random.uniform(self._pause / 2, self._pause))
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)


class Aside:
    """Queues that cannot be read at the moment, and until when they are left alone: longer and longer."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, float]] = {}

    def has(self, queue: str) -> bool:
        """Whether this queue is to be left alone now."""
        return queue in self._until and clock.monotonic() < self._until[queue][0]

    def put(self, queue: str) -> float:
        """Leave it alone; for how many seconds."""
        _, before = self._until.get(queue, (0.0, 0.0))
        pause = min(max(before * 2, _FIRST_ASIDE), _LONGEST_ASIDE)
        self._until[queue] = (clock.monotonic() + pause, pause)
        return pause

    def forget(self, queue: str) -> None:
        """It can be read again."""
        self._until.pop(queue, None)


def _by_queue(reply: Any, queues: Sequence[QueueKeys]) -> list[tuple[QueueKeys, list[Woken]]]:
    out: list[tuple[QueueKeys, list[Woken]]] = []
    for name, entries in reply:
        stream = text(name)
        keys = next(keys for keys in queues if stream.startswith(keys.prefix))
        lane = stream.removeprefix(keys.prefix)
        found = [Woken(lane, text(entry), *_job_of(fields)) for entry, fields in entries]
        out.append((keys, found))
    return out


def _job_of(fields: Any) -> tuple[str, str]:
    """Job and delivery number of an entry; what no arrow has written is no job, and the fetch drops it."""
    match fields:
        case [b"i", job]:
            return text(job), "1"
        case [b"i", job, b"n", deliveries]:
            return text(job), text(deliveries)
        case _:
            return "", "1"
