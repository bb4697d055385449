"""A process dies at every step there is, one after the other: no job is lost, none has two outcomes.

Each point has a queue of its own and a process that is armed with it (`FENNELQ_CRASH`). When all of these are dead,
one worker comes and cleans up after them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import LANES, queue_keys
from fennelq.broker.scripts import script
from fennelq.broker.verbs import lifecycle, presence
from fennelq.broker.verbs.lifecycle import Lifetimes, Settled
from fennelq.model.job import AnyJob, Delivery, JobFailure
from fennelq.model.outcome import died
from fennelq.worker.orders import Orders
from tests.chaos import client, jobs, scale
from tests.chaos.account import Account, Sent, account, drained
from tests.chaos.conftest import Figure
from tests.chaos.fleet import Fleet
from tests.chaos.load import call, name_of, send
from tests.kit.audit import audit
from tests.kit.ledger import Ledger
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.waiting import eventually

pytestmark = pytest.mark.timeout(scale.of(150, long=1200))

CRASHED = 137
CONCURRENCY = 32
AT_ONCE = 8
"""Processes that are made to die at the same time."""
NUMBER = scale.of(60, long=200)
LIFETIMES = Lifetimes(3_600_000, 3_600_000)

Scene = "Scene"


class Site(NamedTuple):
    """Where a process is going to die: its queue, on its server."""

    server: Server
    queue: str
    broker: BlockingBroker

    def say(self, verb: Any) -> Any:
        return self.broker.run(verb)

    @property
    def keys(self) -> Any:
        return queue_keys(jobs.NAME, self.queue)

    def send(self, number: int, function: Any, *args: Any, **options: Any) -> Sent:
        def described(app: Any) -> list[AnyJob]:
            return [call(app, function, *args, queue=self.queue, **options) for _ in range(number)]

        return send(self.server.url, described)

    def take(self, number: int, who: str = "ghost") -> list[Delivery]:
        """Delivered to somebody of whom nobody will hear any more."""
        self.say(presence.open_queue(self.keys))
        verb = lifecycle.fetch(
            self.keys, consumer=who, free=number, lanes=[*LANES.values()], lifetimes=LIFETIMES
        )
        deliveries: list[Delivery] = self.say(verb).deliveries
        return deliveries


# What is there when the process comes


def busy(site: Site) -> Sent:
    """Short jobs, some of which fail once."""
    return {**site.send(NUMBER - 4, jobs.work, 20), **site.send(4, jobs.flaky, 20)}


def nothing(_: Site) -> Sent:
    return {}


def scheduled(site: Site) -> Sent:
    return site.send(NUMBER, jobs.work, 5, delay=0.2)


def abandoned(site: Site) -> Sent:
    """In the hands of an executor that is dead."""
    sent = site.send(NUMBER, jobs.work, 5)
    site.take(30)
    return sent


def long(site: Site) -> Sent:
    """Jobs that outlast the grace period of whoever runs them first."""
    return site.send(20, jobs.work, 2_000)


def simultaneous(site: Site) -> Sent:
    """A hundred jobs that end in the same moment."""
    return site.send(100, jobs.work, 700)


def queued(site: Site) -> Sent:
    """Jobs whose ids the client knows."""

    def described(app: Any) -> list[AnyJob]:
        return [
            call(app, jobs.work, 1, queue=site.queue, job_id=job.partition(":")[2])
            for job in client.ids(site.queue)
        ]

    return send(site.server.url, described)


def dead(site: Site) -> Sent:
    sent = queued(site)
    failure = JobFailure("ValueError", "it never worked")
    held = site.take(client.COUNT)
    verb = lifecycle.finish(site.keys, [Settled(one, died(failure, 1, 3_600_000)) for one in held], LIFETIMES)
    assert site.say(verb) == [1] * client.COUNT
    return sent


# What happens while it is there


def wait(_: Site, process: Process) -> Sent:
    return {}


def arrival(site: Site, process: Process) -> Sent:
    """Jobs come when it has gone to sleep."""

    def blocked() -> bool:
        with site.server.client() as looking:
            consumers: Any = looking.xinfo_consumers(site.keys["s"], "fq")
            return bool(consumers)

    eventually(blocked, within=20, tolerate=(Exception,))
    return busy(site)


def farewell(site: Site, process: Process) -> Sent:
    """It is told to stop when it has begun."""
    ledger = Ledger.inherited_by(process) if False else None
    del ledger
    process.term()
    return {}


class Point(NamedTuple):
    """Where a process dies, and in which scene."""

    at: str
    nth: int
    before: Callable[[Site], Sent] = busy
    meanwhile: Callable[[Site, Process], Sent] = wait
    doing: str = ""
    """What a client does; an executor dies where there is none."""
    concurrency: int = CONCURRENCY
    outcome: str = "S"
    """How the jobs end after all."""

    @property
    def name(self) -> str:
        return f"{self.at}:{self.nth}" + (f" ({self.doing})" if self.doing else "")
