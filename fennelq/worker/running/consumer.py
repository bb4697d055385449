"""The reader of an executor: it takes jobs while slots are free, and sleeps when all queues are empty.

An executor has one reader for all queues and lanes. It never reads more jobs than can start now, so that no job waits
in a busy executor while another executor is idle.

It asks only queues that may have jobs (`hot.py`). A fetch that finds a queue empty puts the executor's name on the list
of those that sleep there, and the next job wakes one of them by a message on its bell. Messages get lost, so the reader
also looks at every queue from time to time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence

from fennelq import crash, log
from fennelq.broker import verbs
from fennelq.broker.broker import ANSWER_TIMEOUT
from fennelq.broker.keys import QUARANTINE, QueueKeys, queue_keys
from fennelq.broker.talk import ask_all
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import MOST_JOBS
from fennelq.broker.verbs.runs import Catch
from fennelq.model.job import Delivery
from fennelq.model.routing import Routing
from fennelq.worker.bus import (
    BellConnected,
    EntriesStranded,
    JobArrived,
    JobDue,
    JobsTaken,
    QueuesDiscovered,
    RoutingChanged,
)
from fennelq.worker.outage import LogThrottle
from fennelq.worker.per_queue import concerns_one_queue
from fennelq.worker.rounds import Rounds
from fennelq.worker.running.aside import Aside
from fennelq.worker.running.batches import Batches
from fennelq.worker.running.held import Token
from fennelq.worker.running.hot import HotQueues
from fennelq.worker.running.rings import Rings
from fennelq.worker.running.workbench import Workbench
from fennelq.worker.state import State

_logger = log.get("fennelq.consumer")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
ROUND = 5.0
"""The longest delay, in seconds, of a job whose message got lost."""
UNHEARD_ROUND = 1.0


class Consumer:
    """Reads for one executor."""

    def __init__(self, state: State, workbench: Workbench) -> None:
        self._state, self._workbench, self._slots = state, workbench, state.slots
        self._app, self._name, self._broker = state.namespace, state.name, state.broker
        # After a lost reply, the entries in it are stranded. This executor must hand them back, which counts no
        # delivery, before their lease runs out and another executor takes them.
        self._patience = min(ANSWER_TIMEOUT, state.lease.reply_timeout)
        self._hot, self._rounds, self._aside = HotQueues(), Rounds(), Aside()
        self._rings, self._batches = Rings(state), Batches(state.slots)
        self._lanes_read: set[tuple[str, str]] = set()
        self._suspects: set[Token] = set()
        self._unread: set[str] = set()
        """Queues from which a fetch got no reply, because the connection was lost."""
        self._stopping = False
        self._pause = _FIRST_PAUSE
        self._log = LogThrottle("reading", state.outage)
        self.drained = asyncio.Event()
        """Set while all jobs that were ready have been taken."""
        state.bus.subscribe(JobArrived, self._woken)
        state.bus.subscribe(BellConnected, self._look_soon)
        state.bus.subscribe(QueuesDiscovered, self._serve_discovered)
        state.bus.subscribe(EntriesStranded, lambda found: self.suspect(found.tokens))

    def serve(self, routing: Routing) -> None:
        """Serve these queues from now on."""
        before = set(self._state.routing.weights)
        if self._state.serve(routing):
            now = set(routing.weights)
            self._hot.serve(routing)
            self._look_at(now - before)
            left = frozenset(before - now)
            self._rings.leave([queue_keys(self._app, queue) for queue in left])
            self._state.bus.publish(RoutingChanged(left))

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

    async def look_again(self) -> None:
        """Look again; returns when all jobs that were ready at the time of this call have been taken."""
        self.drained.clear()
        self._look_at(self._state.routing.weights)
        await self.drained.wait()

    def halt(self) -> None:
        """Start no more jobs from this moment on."""
        self._stopping = True

    async def stop(self, reading: asyncio.Task[None]) -> None:
        """Stop reading. A read under way is never cancelled: that would strand the entries that it takes. From then on,
        messages that arrive for this executor are passed on to others."""
        self.halt()
        while not reading.done():
            self._slots.notify()
            await asyncio.wait([reading], timeout=0.05)
        self._rings.leave(self._state.queues)

    async def _turn(self) -> None:
        if self._unread:
            await self._find_unread()
        if self._suspects:
            await self._hand_back_stranded()
        if self._slots.free <= 0:
            self._rings.pass_on()
            await self._until_free()
            return
        self._look_at(self._rounds.due(self._state.routing.weights, self._round))
        asked = self._hot.next(self._slots.free, self._batches.most)
        if not asked:
            self.drained.set()
            await self._sleep(self._rounds.seconds)
            return
        self.drained.clear()
        await self._ask(asked)
        self._note_connected()

    def _note_connected(self) -> None:
        self._pause = _FIRST_PAUSE
        self._state.note_connected(True)
        self._log.over()

    @property
    def _round(self) -> float:
        """Seconds for a look at every queue: short when not every new job wakes this executor."""
        return ROUND if self._state.hears_all and self._state.lanes != (QUARANTINE,) else UNHEARD_ROUND

    async def _until_free(self) -> None:
        """Returns when a slot may be free. What the rate holds back counts as due later, so all that is ready now has
        been taken."""
        held_back = self._slots.held_back
        if held_back is None:
            await self._slots.changed()
            return
        self.drained.set()
        await self._sleep(held_back)

    async def _sleep(self, seconds: float) -> None:
        """Returns when there may be something to do."""
        timer = asyncio.get_running_loop().call_later(seconds, self._slots.notify)
        try:
            await self._slots.changed()
        finally:
            timer.cancel()

    # Being woken

    def _woken(self, arrived: JobArrived) -> None:
        """A message says that a lane has a new entry."""
        if crash.at is not None:
            crash.at("rung")
        self._rings.add(arrived.queue, arrived.lane)
        served = arrived.queue in self._state.routing.weights and not self._aside.has(arrived.queue)
        if self._stopping or self._slots.free <= 0 or not served:
            self._rings.pass_on()
        if served:
            self._hot.add([arrived.queue], woken=True)
            self._slots.notify()

    def _look_soon(self, bell: BellConnected) -> None:
        """The executor hears the bells of these queues from now on. Earlier messages are lost, so look once."""
        self._look_at(bell.queues)

    def _look_at(self, queues: Iterable[str]) -> None:
        served = self._state.routing.weights
        self._hot.add(queue for queue in queues if queue in served and not self._aside.has(queue))
        self._slots.notify()

    def _serve_discovered(self, known: QueuesDiscovered) -> None:
        self.serve(self._state.routing_among(known.names))

    # Taking jobs

    async def _ask(self, asked: Sequence[tuple[str, int]]) -> None:
        """Fetch from these queues at the same time. If one reply does not arrive, it still uses the others."""
        if len(asked) == 1:
            if self._hot.has_backlog(asked[0][0]):
                self._batches.sent()
            await self._fetch_from(*asked[0])
            return
        ends = await asyncio.gather(*(self._fetch_from(*one) for one in asked), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end

    async def _fetch_from(self, queue: str, most: int) -> None:
        """Fetch from a queue. One whose keys are damaged is not read for a while, so that the others are read."""
        keys, reason = queue_keys(self._app, queue), self._hot.reason(queue)
        self._rings.answered(queue)
        try:
            catch = await self._fetch(keys, most)
        except Exception as error:
            self._state.note_unsure(queue)
            self._state.note_read(queue)
            if not concerns_one_queue(error):
                self._unread.add(queue)
                raise
            await self._put_aside(keys, error)
            return
        self._aside.forget(queue)
        self._hot.fetched(queue, len(catch.deliveries), reason, drained=catch.drained)
        if catch.drained:
            self._state.note_looked(queue)

    async def _fetch(self, keys: QueueKeys, most: int) -> Catch:
        verb = verbs.runs.fetch(
            keys,
            consumer=self._name,
            free=min(most, MOST_JOBS),
            lanes=self._state.lanes,
            lifetimes=self._state.lifetimes,
            sleeps=self._state.sleeps_at(keys.queue),
        )
        catch = await self._broker.run(verb, self._patience)
        self._batches.replied()
        if catch.made:
            self._note_made(keys.queue, catch.made)
        if catch.deliveries:
            self._slots.spend(len(catch.deliveries))
            self._state.note_read(keys.queue)
            self._note_read(keys.queue, catch.deliveries)
            self._state.bus.publish(JobsTaken(keys.queue, catch.deliveries, catch.now_ms))
            await self._take(keys, catch.deliveries)
        if catch.due_ms >= 0:
            self._state.bus.publish(JobDue(catch.due_ms / 1000, keys.queue))
        if catch.too_new:
            self._state.unrunnable.too_new(keys.queue, catch.too_new)
        if catch.problem:
            raise ReplyError(catch.problem)
        return catch

    async def _take(self, keys: QueueKeys, deliveries: list[Delivery]) -> None:
        if self._stopping:
            await self._broker.run(
                verbs.runs.release(keys, [(d.lane, d.entry) for d in deliveries], "unstarted")
            )
            return
        for delivery in deliveries:
            self._workbench.start(delivery)

    def _note_made(self, queue: str, lanes: list[str]) -> None:
        """The first fetch from a lane makes its group."""
        made = {(queue, lane) for lane in lanes}
        if made & self._lanes_read:
            # A person has deleted the lanes, or Redis has lost its data: the jobs in these lanes are gone.
            _logger.warning("groups_made_anew", queue=queue, lanes=len(made & self._lanes_read))

    def _note_read(self, queue: str, deliveries: list[Delivery]) -> None:
        """Another executor may have made the group of a lane that this one has read."""
        self._lanes_read.update((queue, lane) for lane in {delivery.lane for delivery in deliveries})

    # What cannot be read, and what was read in vain

    async def _put_aside(self, keys: QueueKeys, error: Exception) -> None:
        seconds = self._aside.put(keys.queue)
        self._hot.discard(keys.queue)
        asyncio.get_running_loop().call_later(seconds, self._look_at, [keys.queue])
        damage = await self._damage(keys)
        self._log.warn(error, queue=keys.queue, damage=damage, looks_again_in=round(seconds, 1))

    async def _damage(self, keys: QueueKeys) -> str:
        """A sentence about the damaged keys of the queue; empty without damage, and when the keys cannot be read."""
        try:
            looks = ask_all(verbs.queues.damage(keys))
            return "; ".join(found for found in await self._broker.converse(looks) if found)
        except Exception:  # the user of Redis may lack the permission for this as well
            return ""

    async def _find_unread(self) -> None:
        """Look for entries whose reply was lost. On the new connection no late reply can bring them any more, so their
        jobs need not wait until they have been pending for half a lease."""
        for queue in sorted(self._unread):
            # As if it held none: what it holds is sorted out before the others are handed back.
            every = verbs.executors.beat(queue_keys(self._app, queue), self._name, 0, ())
            try:
                beat = await self._broker.run(every, self._patience)
            except Exception as error:
                # Without the right to this, or with damaged keys, the heartbeat warns of it.
                if not concerns_one_queue(error):
                    raise
            else:
                self._suspects.update((queue, *entry) for entry in beat.stranded)
            self._unread.discard(queue)

    async def _hand_back_stranded(self) -> None:
        suspects, self._suspects = self._suspects, set()
        for queue in {token[0] for token in suspects}:
            entries = [t[1:] for t in suspects if t[0] == queue and not self._workbench.holds(t)]
            if entries and not self._aside.has(queue):
                await self._release_stranded(queue_keys(self._app, queue), entries)

    async def _release_stranded(self, keys: QueueKeys, entries: Sequence[tuple[str, str]]) -> None:
        try:
            await self._broker.run(verbs.runs.release(keys, entries, "stranded"))
        except Exception as error:
            # They are not kept: the next beat reports them again.
            if not concerns_one_queue(error):
                raise
            await self._put_aside(keys, error)

    async def _after_error(self, error: Exception) -> None:
        self._log.warn(error)
        # A message may be lost as well. When the connection for messages is lost too, all queues follow at once.
        self._rounds.begin_again()
        # After one cut connection, retry almost at once; while the server stays away, retry less and less often.
        await asyncio.sleep(random.uniform(self._pause / 2, self._pause))
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
