"""The state that the parts of an executor share. Each part is made from it, reads it, and changes it by its methods."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping

from fennelq import clock
from fennelq.app import App
from fennelq.broker.keys import QUARANTINE, QueueKeys, queue_keys
from fennelq.model.routing import Routing
from fennelq.worker.bus import Bus, RedisReplies
from fennelq.worker.outage import Outage
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.processes.signals import SignalPipe
from fennelq.worker.running.held import HeldJobs
from fennelq.worker.running.slots import Slots
from fennelq.worker.running.unrunnable import UnrunnableJobs
from fennelq.worker.serving import routing_of
from fennelq.worker.shared import SharedValues
from fennelq.worker.tally import Tally
from fennelq.worker.threads.lease import Lease
from fennelq.worker.vitals import Vitals


def executor_name() -> str:
    """A unique name. It is short, so that no field of a plain record is longer than the 64 bytes up to which Redis
    keeps a small hash in its compact encoding."""
    return f"{socket.gethostname()[:28]}.{os.getpid()}.{os.urandom(3).hex()}"


class State:
    """The state of one executor."""

    def __init__(self, app: App, config: ExecutorConfig, signals: SignalPipe | None = None) -> None:
        self.app, self.config, self.settings = app, config, app.settings
        self.namespace, self.lifetimes = app.namespace, app.lifetimes
        self.name = config.name or executor_name()
        self.lanes = tuple(config.lanes)
        """The lanes that it reads, in this order."""
        self.broker = app.wiring.broker(app.address)
        self.bus = Bus()
        self.signals = signals or SignalPipe()
        self.outage = Outage(self.broker.address)
        self.slots = Slots(config.concurrency, config.max_jobs, config.rate)
        self.held = HeldJobs()
        self.shared = SharedValues()
        self.lease = Lease(app.settings.lease, app.settings.beat)
        self.unrunnable = UnrunnableJobs(app.tasks, app.service.partition(":")[0])
        self.tally = _tally_of(app, config.metrics)
        self.vitals, self.started = Vitals(), clock.monotonic()
        self._ending, self._grace = "", config.grace
        self.wanted = routing_of(app, config)
        """The queues that the executor was started for."""
        self.routing = Routing({})
        """The queues that it serves now. When it was started for every queue, these are the known ones."""
        self.connected = False
        """Whether the last read has got a reply."""
        self.listening = False
        """Whether messages arrive."""
        self.bells: set[str] = set()
        """The queues whose messages to this executor arrive."""
        self.unsure: dict[str, float] = {}
        """Queue → when a fetch got no reply. It may have taken jobs for this executor that it does not hold."""
        self.looked: dict[str, float] = {}
        """Queue → when a fetch has last found it empty, and told when its next job is due."""
        self.read: set[str] = set()
        """The queues from which it has taken jobs: it has a consumer there."""
        self.colleagues = 1
        """The living executors of the app, this one included."""
        self.left_in_outbox = 0
        """The number of entries that the courier has last left in the outbox of the app, because it cannot carry
        them."""
        self.deaths: Mapping[str, str] = {}
        """Executor → how its process ended, as its supervisor saw it."""

    @property
    def queues(self) -> list[QueueKeys]:
        """The queues served."""
        return [queue_keys(self.namespace, queue) for queue in self.routing.weights]

    @property
    def own_queues(self) -> set[str]:
        """The queues of this app's tasks, whether they are known in Redis or not."""
        return {task.queue for task in self.app.tasks.values()} | {self.settings.default_queue}

    @property
    def longest_sleep(self) -> float:
        """The most seconds between two looks for due jobs and schedules. Messages announce those that become due
        sooner. While messages cannot arrive, executors look more often. An executor that takes no jobs never sleeps at
        a queue, so it gets no such messages."""
        interval = self.settings.schedule_interval
        announced = self.listening and self.config.consumes
        return self.stretched(max(self.settings.beat, interval)) if announced else interval

    def stretched(self, interval: float) -> float:
        """The interval of a duty that all executors share: the more there are, the longer. Three of them still look as
        often as they would alone. It is never longer than a lease, or than the interval itself."""
        return min(interval * max(1.0, self.colleagues / 3), max(interval, self.lease.length))

    @property
    def ending(self) -> str | None:
        """`stopping` or `draining`; None before its end."""
        return self._ending or None

    @property
    def grace(self) -> float:
        """Seconds that running jobs get to finish when it ends."""
        return self._grace

    @property
    def hears_all(self) -> bool:
        """Whether the messages about all served queues arrive."""
        return len(self.bells) >= len(self.routing.weights)

    def sleeps_at(self, queue: str) -> bool:
        """Whether a job that arrives in this queue may wake this executor. The executor of the quarantine lane is not
        woken: it looks every second."""
        return queue in self.bells and self.lanes != (QUARANTINE,)

    def routing_among(self, known: Iterable[str]) -> Routing:
        """The queues to serve when these queues are known."""
        return self.wanted.including(self.own_queues.union(known))

    def serve(self, routing: Routing) -> bool:
        """Serve these queues from now on; returns whether that is a change."""
        changed, self.routing = routing != self.routing, routing
        self.bells.intersection_update(routing.weights)
        self.looked = {queue: when for queue, when in self.looked.items() if queue in routing.weights}
        return changed

    def note_ending(self, how: str, grace: float | None = None) -> None:
        """Record that the executor takes no more jobs. A drain stays one, even if a signal stops it as well. `grace` is
        the time that running jobs get, if it is another one than usual."""
        self._ending = self._ending or how
        self._grace = self._grace if grace is None else grace

    def note_looked(self, queue: str) -> None:
        """Record that a fetch has found this queue empty, and has told when its next job is due."""
        self.looked[queue] = clock.monotonic()

    def note_connected(self, connected: bool) -> None:
        """Record whether the last read has got a reply."""
        if connected and not self.connected:
            self.connected = True
            self.bus.publish(RedisReplies())
        self.connected = connected

    def note_listening(self, listening: bool) -> None:
        """Record whether messages arrive from now on."""
        self.listening = listening

    def note_left_in_outbox(self, entries: int) -> None:
        """Record how many entries the courier has left in the outbox of the app."""
        self.left_in_outbox = entries

    def note_heard(self, queues: Iterable[str]) -> None:
        """Record that the messages about these queues arrive from now on."""
        self.bells.update(queue for queue in queues if queue in self.routing.weights)

    def note_unheard(self, queues: Iterable[str]) -> None:
        """Record that the messages about these queues do not arrive any more."""
        self.bells.difference_update(queues)

    def note_read(self, queue: str) -> None:
        """Record that a fetch from this queue may have taken jobs."""
        self.read.add(queue)

    def note_unsure(self, queue: str) -> None:
        """Record that a fetch from this queue got no reply."""
        self.unsure[queue] = clock.monotonic()

    def forget_unsure(self, queue: str, since: float) -> None:
        """Forget this, unless another fetch got no reply in the meantime. May be called from another thread."""
        if self.unsure.get(queue) == since:
            self.unsure.pop(queue, None)

    def note_colleagues(self, number: int) -> None:
        """Record how many executors of the app are alive."""
        self.colleagues = max(1, number)

    def note_deaths(self, deaths: Mapping[str, str]) -> None:
        """Record how processes of executors have ended."""
        self.deaths = deaths


def _tally_of(app: App, metrics: str) -> Tally:
    if metrics:
        app.counting.turn_on(metrics)
    return Tally(app.tasks, app.counting.runs if app.counting.on else None)
