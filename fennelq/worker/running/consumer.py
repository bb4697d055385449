"""The reader of an executor: it takes jobs while slots are free, and blocks when all queues are empty.

An executor has one reader for all queues and lanes. It never reads more jobs than can start now, so that no job waits
in a busy executor while another executor is idle.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any

from fennelq import clock, crash, log
from fennelq.broker import verbs
from fennelq.broker.broker import ANSWER_TIMEOUT
from fennelq.broker.keys import GROUP, QueueKeys, queue_keys
from fennelq.broker.talk import ask_all
from fennelq.broker.trouble import Trouble, classify
from fennelq.broker.verb import MOST_JOBS, Word, text
from fennelq.broker.verbs.runs import Catch, Woken
from fennelq.model.job import Delivery
from fennelq.model.routing import Routing
from fennelq.worker.bus import EntriesStranded, JobDue, QueuesDiscovered
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import concerns_one_queue
from fennelq.worker.running.held import Token
from fennelq.worker.running.workbench import Workbench
from fennelq.worker.state import State

_logger = log.get("fennelq.consumer")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_FIRST_ASIDE, _LONGEST_ASIDE = 0.5, 30.0
_NOTHING_TO_READ = 0.25


class Consumer:
    """Reads for one executor."""

    def __init__(self, state: State, workbench: Workbench) -> None:
        self._state, self._workbench, self._slots = state, workbench, state.slots
        self._app, self._name, self._broker = state.namespace, state.name, state.broker
        self._lanes, self._lifetimes = state.lanes, state.lifetimes
        # After a lost reply, a read waits for these two times together. The entry in that reply is stranded. This
        # executor must hand it back, which counts no delivery, before its lease runs out and another executor takes it.
        self._block_ms = max(100, min(5000, round(state.lease.length * 250)))
        self._patience = min(ANSWER_TIMEOUT, state.lease.reply_timeout)
        self._doorbell = state.broker.doorbell()
        self._opened: set[str] = set()
        self._known: set[str] = set()
        self._suspects: set[Token] = set()
        self._waking: asyncio.Task[None] | None = None
        self._stopping = False
        self._blocking = False
        self._aside = Aside()
        self._pause = _FIRST_PAUSE
        self._log = LogThrottle("reading", state.outage)
        self._round = self._drained_in = 0
        self.drained = asyncio.Event()
        """Set while all jobs that were ready have been taken."""
        state.bus.subscribe(QueuesDiscovered, self._serve_discovered)
        state.bus.subscribe(EntriesStranded, lambda found: self.suspect(found.tokens))

    async def serve(self, routing: Routing) -> None:
        """Serve these queues from now on."""
        if self._state.serve(routing):
            await self._wake_blocked_read()

    async def run(self) -> None:
        """Read until `stop`. While Redis is away, running jobs go on, and it retries until Redis is reachable again."""
        while not self._stopping:
            try:
                await self._turn()
            except Exception as error:
                self._state.note_connected(False)
                await self._after_error(error)

    def suspect(self, stranded: Iterable[Token]) -> None:
        """Hand these entries back between two reads, when no reply is under way. During a read, the reply may deliver
        one of them: handing it back then would take away the job that is about to start."""
        self._suspects.update(stranded)
        if self._suspects:
            self._slots.notify()
            self._wake_soon()

    async def look_again(self) -> None:
        """Look again; returns when all jobs that were ready at the time of this call have been taken."""
        now = self._round
        while self._drained_in <= now:
            self.drained.clear()
            await self._wake_blocked_read()
            await self.drained.wait()

    def halt(self) -> None:
        """Start no more jobs from this moment on."""
        self._stopping = True

    async def stop(self, reading: asyncio.Task[None]) -> None:
        """Stop reading. A blocked read is woken and never cancelled: that would strand an entry that it delivers."""
        self.halt()
        while not reading.done():
            self._slots.notify()
            await self._wake_blocked_read()
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
        self._state.note_connected(True)
        self._log.over()
        if drained:
            self._drained_in = self._round
            self.drained.set()
            await self._block()

    async def _fetch_round(self) -> bool:
        """Fill the free slots from the queues in order; True when all queues are empty."""
        drained = True
        for queue in self._state.routing.order():
            if self._slots.free <= 0:
                return False
            if not self._aside.has(queue):
                drained = await self._fetch_from(queue_keys(self._app, queue)) and drained
        return drained and not self._stopping

    async def _fetch_from(self, keys: QueueKeys) -> bool:
        """Fetch from a queue; returns whether it is drained. A queue whose keys are damaged counts as drained, and is
        not read for a while, so that the others are read."""
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
        self._log.warn(error, queue=keys.queue, damage=damage, looks_again_in=round(seconds, 1))

    async def _damage(self, keys: QueueKeys) -> str:
        """A sentence about the damaged keys of the queue; empty without damage, and when the keys cannot be read."""
        try:
            looks = ask_all(verbs.queues.damage(keys))
            return "; ".join(found for found in await self._broker.converse(looks) if found)
        except Exception:  # the user of Redis may lack the permission for this as well
            return ""

    async def _fetch(self, keys: QueueKeys, woken: Sequence[Woken] = ()) -> Catch:
        if keys.queue not in self._opened:
            await self._open(keys)
        verb = verbs.runs.fetch(
            keys,
            consumer=self._name,
            free=min(self._slots.free, MOST_JOBS),
            lanes=self._lanes,
            lifetimes=self._lifetimes,
            woken=woken,
        )
        catch = await self._broker.run(verb, self._patience)
        if catch.deliveries:
            self.drained.clear()
            await self._take(keys, catch.deliveries)
        if catch.due_ms >= 0:
            self._state.bus.publish(JobDue(catch.due_ms / 1000))
        self._state.unrunnable.too_new(keys.queue, catch.too_new)
        if catch.groups_missing:
            self._opened.discard(keys.queue)
        return catch

    async def _take(self, keys: QueueKeys, deliveries: list[Delivery]) -> None:
        if self._stopping:
            await self._broker.run(
                verbs.runs.release(keys, [(d.lane, d.entry) for d in deliveries], "unstarted")
            )
            return
        for delivery in deliveries:
            self._workbench.start(delivery)

    async def _hand_back_stranded(self) -> None:
        suspects, self._suspects = self._suspects, set()
        for keys in self._state.queues:
            entries = [t[1:] for t in suspects if t[0] == keys.queue and not self._workbench.holds(t)]
            if entries and not self._aside.has(keys.queue):
                await self._release_stranded(keys, entries)

    async def _release_stranded(self, keys: QueueKeys, entries: Sequence[tuple[str, str]]) -> None:
        try:
            await self._broker.run(verbs.runs.release(keys, entries, "stranded"))
        except Exception as error:
            # They are not kept: the next beat reports them again.
            if not concerns_one_queue(error):
                raise
            await self._put_aside(keys, error)

    async def _open(self, keys: QueueKeys) -> None:
        made = await self._broker.run(verbs.queues.open_queue(keys))
        if made and keys.queue in self._known:
            # A person has deleted the lanes, or Redis has lost its data: the jobs in these lanes are gone.
            _logger.warning("groups_made_anew", queue=keys.queue, lanes=made)
        self._known.add(keys.queue)
        self._opened.add(keys.queue)
        if crash.at is not None:
            crash.at("opened")

    async def _block(self) -> None:
        """Wait until an entry arrives in any lane. It reads one entry; the next fetch takes the rest."""
        queues = [keys for keys in self._state.queues if not self._aside.has(keys.queue)]
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
        """A blocked read has taken these entries for this executor: fetch their jobs, and hand back those without a
        free slot."""
        if crash.at is not None:
            crash.at("woken")
        entries = _by_queue(reply, self._state.queues)
        for keys, found in entries:
            room = 0 if self._stopping else self._slots.free
            try:
                if found[:room]:
                    await self._fetch(keys, found[:room])
                if found[room:]:
                    await self._broker.run(
                        verbs.runs.release(keys, [(w.lane, w.entry) for w in found[room:]])
                    )
            except Exception as error:
                # The entry is stranded now, and is handed back when the queue can be read again.
                if not concerns_one_queue(error):
                    raise
                await self._put_aside(keys, error)

    def _serve_discovered(self, known: QueuesDiscovered) -> None:
        if self._state.serve(self._state.routing_among(known.names)):
            self._wake_soon()

    def _wake_soon(self) -> None:
        if self._blocking:
            # Kept in an attribute: the loop itself keeps only a weak reference to a task.
            self._waking = asyncio.create_task(self._wake_blocked_read())

    async def _wake_blocked_read(self) -> None:
        if self._blocking:
            try:
                await self._doorbell.wake()
            except Exception as error:
                self._log.warn(error)

    async def _after_error(self, error: Exception) -> None:
        if classify(error) is Trouble.GROUP or concerns_one_queue(error):
            # The error of a blocked read does not name the stream. So open all queues again: the queue for which this
            # fails is put aside.
            self._opened.clear()
            if classify(error) is Trouble.GROUP:
                return
        self._log.warn(error, running=self._slots.taken)
        # After one cut connection, retry almost at once; while the server stays away, retry less and less often.
        await asyncio.sleep(random.uniform(self._pause / 2, self._pause))
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)


class Aside:
    """Queues that cannot be read now. The reader skips each for a time that doubles with every further error."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, float]] = {}

    def has(self, queue: str) -> bool:
        """Whether the reader skips this queue now."""
        return queue in self._until and clock.monotonic() < self._until[queue][0]

    def put(self, queue: str) -> float:
        """Skip the queue from now on; returns for how many seconds."""
        _, before = self._until.get(queue, (0.0, 0.0))
        pause = min(max(before * 2, _FIRST_ASIDE), _LONGEST_ASIDE)
        self._until[queue] = (clock.monotonic() + pause, pause)
        return pause

    def forget(self, queue: str) -> None:
        """Do not skip the queue any more, because it can be read again."""
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
    """Job and delivery number of an entry. An entry that fennelq has not written has no job: the fetch drops it."""
    match fields:
        case [b"i", job]:
            return text(job), "1"
        case [b"i", job, b"n", deliveries]:
            return text(job), text(deliveries)
        case _:
            return "", "1"
