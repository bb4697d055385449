"""A process dies at every step there is: no job is lost, none has two outcomes.

Each point has a queue of its own and a process that is armed with it (`_FENNELQ_CRASH`). When all of these are dead,
one worker comes and cleans up after them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pytest

from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import LANES, QueueKeys, queue_keys
from fennelq.broker.verbs.runs import Settled
from fennelq.model.job import AnyJob, Delivery, JobFailure
from fennelq.model.lifetimes import Lifetimes
from fennelq.model.outcome import died
from fennelq.worker.processes.config import ExecutorConfig
from tests.chaos import client, jobs, scale
from tests.chaos.account import Sent, account, drained
from tests.chaos.conftest import Figure
from tests.chaos.fleet import Fleet, Worker
from tests.chaos.load import call, send, some
from tests.kit.audit import audit
from tests.kit.ledger import Ledger
from tests.kit.server import Server
from tests.kit.spawn import Process, Spawner
from tests.kit.waiting import eventually

pytestmark = pytest.mark.timeout(scale.of(150, long=1200))

CRASHED: Final = 137
CONCURRENCY: Final = 32
AT_ONCE: Final = 12
"""Processes that are made to die at the same time."""
PASSINGS: Final = 10
"""In so many rounds, each point is armed for a later passing; no process passes all of them much oftener."""
NUMBER: Final = scale.of(60, long=200)
SUPERVISES: Final = "supervise"
LIFETIMES: Final = Lifetimes(3_600_000, 3_600_000)


class Site(NamedTuple):
    """Where a process is going to die: its queue, on its server."""

    server: Server
    ledger: Ledger
    broker: BlockingBroker
    queue: str

    @property
    def keys(self) -> QueueKeys:
        return queue_keys(jobs.NAME, self.queue)

    @property
    def further(self) -> str:
        """Another queue of the same executor."""
        return f"{self.queue}-further"

    @property
    def queues(self) -> tuple[str, str]:
        return self.queue, self.further

    def send(self, number: int, function: Any, *args: Any, **options: Any) -> Sent:
        return send(self.server.url, some(number, function, *args, **{"queue": self.queue, **options}))

    def take(self, number: int) -> list[Delivery]:
        """Delivered to an executor that will never be heard of again."""
        lanes = [*LANES.values()]
        verb = verbs.runs.fetch(self.keys, consumer="ghost", free=number, lanes=lanes, lifetimes=LIFETIMES)
        return self.broker.run(verb).deliveries

    def begun(self) -> int:
        """Runs that have begun."""
        return sum(
            row.kind == "start" and row.job_id.startswith(f"{self.queue}:") for row in self.ledger.read()
        )


# What is there when the process comes


def nothing(_: Site) -> Sent:
    return {}


def busy(site: Site) -> Sent:
    """Short jobs, which do not end all at once; some of them fail first."""
    thirds = [site.send((NUMBER - 4) // 3, jobs.work, milliseconds) for milliseconds in (5, 20, 35)]
    return {**site.send(4, jobs.flaky, 20), **thirds[0], **thirds[1], **thirds[2]}


def scheduled(site: Site) -> Sent:
    return site.send(NUMBER, jobs.work, 5, delay=0.2)


def abandoned(site: Site) -> Sent:
    """Some are in the hands of an executor that is dead."""
    sent = site.send(NUMBER, jobs.work, 5)
    assert len(site.take(30)) == 30
    return sent


def long(site: Site) -> Sent:
    """Jobs that outlast the grace period of the executor that runs them first."""
    return site.send(20, jobs.work, 2_000)


def simultaneous(site: Site) -> Sent:
    """A hundred jobs that end in the same moment."""
    return site.send(100, jobs.work, 700)


def known(site: Site) -> Sent:
    """Jobs whose ids the client knows."""

    def described(app: Any) -> list[AnyJob]:
        keys = [job.partition(":")[2] for job in client.ids(site.queue)]
        return [call(app, jobs.work, 1, queue=site.queue, job_id=key) for key in keys]

    return send(site.server.url, described)


def dead(site: Site) -> Sent:
    sent = known(site)
    outcome = died(JobFailure("ValueError", "it never worked"), 1, 3_600_000)
    held = [Settled(delivery, outcome) for delivery in site.take(client.COUNT)]
    # The first one begins a group.
    assert site.broker.run(verbs.runs.finish(site.keys, held, LIFETIMES)) == [3] + [1] * (client.COUNT - 1)
    return sent


# What happens while it is there


def wait(_: Site, __: Process) -> Sent:
    return {}


def arrival(site: Site, process: Process) -> Sent:
    """Jobs come when it has gone to sleep."""
    _sleeps(site, process, site.queue)
    return busy(site)


def arrival_when_full(site: Site, process: Process) -> Sent:
    """It sleeps at two queues. A job of one of them takes its only slot, then a job of the other one rings."""
    _sleeps(site, process, site.queue, site.further)
    sent = site.send(1, jobs.work, 2_000)
    eventually(lambda: site.begun() == 1, within=30, what=f"the job of {site.queue} has begun")
    return {**sent, **site.send(10, jobs.work, 5, queue=site.further)}


def bereavement(site: Site, process: Process) -> Sent:
    """It is a supervisor, and its executor is killed with jobs in its hands."""
    eventually(lambda: site.begun() >= 20, within=30, what=f"20 jobs of {site.queue} have begun")
    (executor,) = Worker(process).executors()
    executor.kill()
    return {}


def farewell(site: Site, process: Process) -> Sent:
    """It is asked to stop, with jobs in its hands."""
    eventually(lambda: site.begun() >= 20, within=30, what=f"20 jobs of {site.queue} have begun")
    process.term()
    return {}


def idle_farewell(site: Site, process: Process) -> Sent:
    """It is asked to stop, with nothing to do; then jobs come."""
    _sleeps(site, process, site.queue)
    process.term()
    return busy(site)


def _sleeps(site: Site, process: Process, *queues: str) -> None:
    idle = [queue_keys(jobs.NAME, queue)["idle"] for queue in queues]
    with site.server.client() as looking:
        eventually(
            lambda: all(looking.scard(key) == 1 for key in idle), within=30, what=f"{process!r} sleeps"
        )


class Point(NamedTuple):
    """Where a process dies, and in which scene."""

    at: str
    nth: int
    before: Callable[[Site], Sent] = busy
    meanwhile: Callable[[Site, Process], Sent] = wait
    doing: str = ""
    """What the process does, if it is a client; otherwise it is an executor, or SUPERVISES one."""
    concurrency: int = CONCURRENCY
    queues: int = 1
    """How many of the site's queues the executor serves."""
    end: str = "done"
    """What the jobs come to in the end."""
    row: str = "F2"
    step: int = 0
    """How many passings later it dies in each further round of the long run: none, where there is only one."""

    @property
    def name(self) -> str:
        return f"{self.at}:{self.nth}" + (f", {self.doing}" if self.doing else "")


def around(name: str, nth: int, **scene: Any) -> list[Point]:
    """Before a script is sent, when it was sent and not answered, and when it was answered."""
    return [Point(f"{when}:{name}", nth, **scene) for when in ("before", "sent", "answered")]


POINTS: Final = [
    # An executor begins, takes jobs, runs them, writes down how they ended.
    Point("first_beat", 1),
    *around("present", 1),
    *around("fetch", 2, step=1),
    Point("rung", 1, nothing, arrival),
    # It has asked twice before it sleeps: at its start, and when it had subscribed to its bell.
    *around("fetch", 3, before=nothing, meanwhile=arrival),
    *around("ring", 1, before=nothing, meanwhile=arrival_when_full, concurrency=1, queues=2),
    Point("before_handler", 1, step=7),
    Point("before_handler", 40, step=7),
    Point("after_handler", 1, step=7),
    Point("after_handler", 40, step=7),
    *around("finish", 1),
    *around("finish", 2, step=1),
    Point("before:finish", 1, simultaneous, concurrency=100, row="F10"),
    *around("beat", 2, before=long, step=1),
    # Duties.
    *around("promote", 1, before=scheduled),
    *around("recover", 1, before=abandoned),
    *around("gc", 1),
    *around("index", 1),
    # It stops.
    *around("release", 1, before=long, meanwhile=farewell),
    *around("stay_awake", 1, before=nothing, meanwhile=idle_farewell),
    # Only where it has taken jobs.
    *around("close", 1, before=busy, meanwhile=idle_farewell),
    *around("absent", 1, before=nothing, meanwhile=idle_farewell),
    # Its supervisor writes down how it died.
    *around("died", 1, before=long, meanwhile=bereavement, doing=SUPERVISES),
    # Clients.
    *around("enqueue", 10, before=nothing, doing="send", step=1),
    *around("cancel", 10, before=known, doing="cancel", end="cancelled", step=1),
    *around("watch", 1, before=known, doing="watch"),
    *around("replay", 1, before=dead, doing="replay"),
    *around("forget", 1, before=dead, doing="forget", end="gone"),
    *around("purge", 1, before=known, doing="purge", end="cancelled"),
]


class Aftermath:
    """All of them are dead, and one worker has cleaned up."""

    def __init__(self, server: Server, spawner: Spawner, ledger: Ledger, round: int) -> None:
        self.server, self.ledger = server, ledger
        self._spawner, self._round = spawner, round
        self._broker = BlockingBroker(address_of(server.url))
        self.sent: dict[str, dict[str, str]] = {}
        self.codes: dict[str, int] = {}

    def happen(self) -> None:
        """Several at a time, and then the worker."""
        client.teach(self.server)
        for first in range(0, len(POINTS), AT_ONCE):
            dying = [self._begin(point) for point in POINTS[first : first + AT_ONCE]]
            for point, site, process in dying:
                self.sent[site.queue].update(point.meanwhile(site, process))
            for point, site, process in dying:
                self.codes[site.queue] = process.returncode(40)
                self._do_again(point, site)
        self._clean_up()

    def site(self, point: Point) -> Site:
        return Site(self.server, self.ledger, self._broker, f"q{POINTS.index(point)}")

    def _begin(self, point: Point) -> tuple[Point, Site, Process]:
        site = self.site(point)
        self.sent[site.queue] = dict(point.before(site))
        nth = point.nth + self._round % PASSINGS * point.step
        armed = {"_FENNELQ_CRASH": f"{point.at}:{nth}"}
        if point.doing == SUPERVISES:
            return point, site, self._supervisor(point, site, armed)
        if point.doing:
            return point, site, self._client(point, site, armed)
        return point, site, self._executor(point, site, armed)

    def _executor(self, point: Point, site: Site, armed: Mapping[str, str]) -> Process:
        config = ExecutorConfig(
            app=f"{jobs.__name__}:app",
            queues=",".join(f"{queue}:1" for queue in site.queues[: point.queues]),
            concurrency=point.concurrency,
            grace=0.1,
        )
        fleet = Fleet(self._spawner, self.server, self.ledger)
        environment = {**fleet.environment, "FENNELQ_REDIS_URL": self.server.url, **armed}
        return self._spawner("fennelq.worker.processes.process", config.to_text(), environment=environment)

    def _supervisor(self, point: Point, site: Site, armed: Mapping[str, str]) -> Process:
        fleet = Fleet(self._spawner, self.server, self.ledger)
        return fleet.start("-q", site.queue, concurrency=point.concurrency, settings=armed).process

    def _client(self, point: Point, site: Site, armed: Mapping[str, str]) -> Process:
        if point.doing == "send":
            self.sent[site.queue] = dict.fromkeys(client.ids(site.queue), "work")
        words = (self.server.url, site.queue, point.doing)
        return self._spawner(client.__name__, *words, environment=armed)

    def _do_again(self, point: Point, site: Site) -> None:
        """What a client died of doing is done again, by one who is not armed."""
        if point.doing and point.doing != SUPERVISES:
            asyncio.run(client.main(self.server.url, site.queue, point.doing))

    def _clean_up(self) -> None:
        fleet = Fleet(self._spawner, self.server, self.ledger)
        fleet.start(concurrency=100)
        for point in POINTS:
            for queue in self.site(point).queues:
                drained(self.server, within=60, queue=queue)
        fleet.stop()


@pytest.fixture(scope="module", params=range(scale.of(1, long=20)))
def aftermath(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Aftermath]:
    """Made once for all points; in the long run several times, each time a passing later."""
    directory = tmp_path_factory.mktemp("crashes")
    spawner = Spawner(directory)
    with Server() as server:
        try:
            after = Aftermath(server, spawner, Ledger(directory / "ledger"), request.param)
            after.happen()
            audit(server)
            yield after
        finally:
            spawner.close()


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_no_job_is_lost_and_none_ends_twice_when_a_process_dies(
    aftermath: Aftermath, point: Point, figure: Figure
) -> None:
    site = aftermath.site(point)
    sent = aftermath.sent[site.queue]
    assert aftermath.codes[site.queue] == CRASHED, "it did not come to this point"
    it = account(aftermath.server, sent, aftermath.ledger, budget=point.concurrency, queues=site.queues)
    if point.end == "gone":
        assert (len(it.lost), it.completed_twice) == (len(sent), len(sent))
        return
    it.sound()
    assert vars(it)[point.end] == len(sent) > 0
    figure(
        point.row, f"{point.name}: {len(sent)} jobs, lost 0, completed twice 0, run again {it.started_again}"
    )
