"""Recovery: an executor that has itself been heard takes the jobs of those that fell silent, and logs how many."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.typing import EventDict

from fennelq.broker.broker import Broker
from fennelq.model.routing import Routing
from fennelq.worker.bus import JobsWaitInLines
from fennelq.worker.duties.recovery import Recovery
from fennelq.worker.processes.signals import Signal
from tests.broker.desk import LEASE_MS, Desk, a_job, about
from tests.kit.server import Server
from tests.worker.states import Beating, NotedSignals, published, state_of

INTERVAL = 50.0
FLEET = 4
"""So many executors that most sweeps find that another one was first."""


class Sweeper:
    """A recovery whose surroundings a test decides."""

    def __init__(self, broker: Broker, *desks: Desk, interval: float = INTERVAL) -> None:
        self.lease = Beating(desks[0].now())
        self.state = state_of(
            broker,
            *(desk.keys for desk in desks),
            lease=LEASE_MS / 1000,
            maintenance_interval=interval,
        )
        self.state.lease = self.lease
        self.state.signals = self.signals = NotedSignals()
        self._recovery = Recovery(self.state)

    async def tick(self) -> float:
        return await self._recovery.tick()


@pytest.fixture(params=[1, FLEET], ids=["alone", "in a fleet"])
def sweeper(request: pytest.FixtureRequest, broker: Broker, desk: Desk, other: Desk) -> Sweeper:
    """An executor without and with many others: what it does is the same, but not how it learns what to do."""
    sweeper = Sweeper(broker, desk, other)
    sweeper.state.note_colleagues(request.param)
    return sweeper


@pytest.fixture
def in_fleet(broker: Broker, desk: Desk, other: Desk) -> Sweeper:
    sweeper = Sweeper(broker, desk, other)
    sweeper.state.note_colleagues(FLEET)
    return sweeper


def silent_jobs(desk: Desk, number: int) -> None:
    """So many jobs, taken by an executor that has not renewed their leases since."""
    for start in range(0, number, 100):
        desk.enqueue(*(a_job(str(n)) for n in range(start, min(start + 100, number))))
    while desk.take():
        pass
    desk.silence()


def recovered(logged: list[EventDict]) -> list[tuple[Any, ...]]:
    return [
        (line["queue"], line["requeued"], line["dead"], line["log_level"])
        for line in logged
        if line["event"] == "jobs_recovered"
    ]


async def test_the_jobs_of_silent_executors_are_queued_again_and_counted_by_queue(
    sweeper: Sweeper, desk: Desk, other: Desk, logged: list[EventDict]
) -> None:
    silent_jobs(desk, 3)
    silent_jobs(other, 1)
    assert await sweeper.tick() == INTERVAL
    assert (desk.waiting(), desk.pending()) == (["0", "1", "2"], {})
    assert (other.waiting(), other.pending()) == (["0"], {})
    assert recovered(logged) == [("mail", 3, 0, "warning"), ("other", 1, 0, "warning")]
    assert sweeper.signals.sent == []


async def test_the_supervisor_learns_that_jobs_wait_in_quarantine(sweeper: Sweeper, desk: Desk) -> None:
    desk.executing(a_job())
    desk.recover()
    desk.take()
    desk.silence()
    await sweeper.tick()
    assert desk.waiting("iso") == ["1"]
    assert sweeper.signals.sent == [Signal.QUARANTINE]


@pytest.mark.audit(unfinished=True)
async def test_after_all_pages_of_a_sweep_it_tells_once_that_jobs_wait_in_lines(
    sweeper: Sweeper, desk: Desk, other: Desk
) -> None:
    found = published(sweeper.state, JobsWaitInLines)
    silent_jobs(desk, 150)
    silent_jobs(other, 1)
    desk.enqueue(a_job("first", gates="c1:a"), a_job("second", gates="c1:a"))
    assert desk.stats()["parked"] == 1
    await sweeper.tick()
    assert desk.pending() == {}
    assert found == [JobsWaitInLines("mail")]


@pytest.mark.audit(unfinished=True)
async def test_a_job_whose_lease_was_renewed_within_a_lease_is_left_alone(
    sweeper: Sweeper, desk: Desk, logged: list[EventDict]
) -> None:
    held = desk.executing(a_job("1"), a_job("2"))
    desk.silent(held[:1], LEASE_MS)
    desk.silent(held[1:], LEASE_MS // 2)
    await sweeper.tick()
    assert list(desk.pending()) == [held[1].entry]
    assert recovered(logged) == [("mail", 1, 0, "warning")]


@pytest.mark.audit(unfinished=True)
async def test_an_executor_that_is_not_steady_takes_no_jobs_from_others(
    sweeper: Sweeper, desk: Desk, other: Desk
) -> None:
    sweeper.lease.is_steady = False
    silent_jobs(desk, 1)
    silent_jobs(other, 1)
    before = desk.pending(), other.pending()
    assert await sweeper.tick() == INTERVAL
    assert (desk.pending(), other.pending()) == before
    sweeper.lease.is_steady = True
    await sweeper.tick()
    assert (desk.pending(), other.pending()) == ({}, {})


@pytest.mark.audit(unfinished=True)
async def test_an_executor_whose_own_beat_was_answered_too_long_ago_takes_no_jobs_from_others(
    sweeper: Sweeper, desk: Desk
) -> None:
    silent_jobs(desk, 1)
    before = desk.pending()
    sweeper.lease.server_ms -= LEASE_MS
    await sweeper.tick()
    assert desk.pending() == before


@pytest.mark.audit(unfinished=True)
async def test_an_executor_takes_no_jobs_after_the_clock_of_redis_was_set_back(
    sweeper: Sweeper, desk: Desk
) -> None:
    """Less time has passed since the last beat by the clock of Redis than by its own."""
    silent_jobs(desk, 1)
    before = desk.pending()
    sweeper.lease.ago_ms = LEASE_MS
    await sweeper.tick()
    assert desk.pending() == before
    sweeper.lease.ago_ms = 0
    await sweeper.tick()
    assert desk.pending() == {}


@pytest.mark.audit(unfinished=True)
async def test_an_executor_that_ceases_to_be_steady_between_two_pages_takes_no_more(
    sweeper: Sweeper, other: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent_jobs(other, 250)
    answers = iter([True, False])

    def steady(_: Beating) -> bool:
        return next(answers)

    monkeypatch.setattr(Beating, "steady", property(steady))
    await sweeper.tick()
    assert len(other.pending()) == 150


@pytest.mark.audit(unfinished=True)
async def test_there_is_one_sweep_per_interval(sweeper: Sweeper, desk: Desk) -> None:
    await sweeper.tick()
    silent_jobs(desk, 1)
    await sweeper.tick()
    assert len(desk.pending()) == 1
    assert desk.ttl(desk.keys["swept"]) == about(round(INTERVAL * 900))


@pytest.mark.parametrize(
    ("colleagues", "interval", "pause"),
    [(1, 5.0, 5.0), (3, 5.0, 5.0), (6, 5.0, 10.0), (18, 5.0, 30.0), (500, 5.0, 30.0), (500, 50.0, 50.0)],
)
async def test_a_queue_is_swept_every_half_lease_however_many_executors_share_the_sweeps(
    broker: Broker, desk: Desk, colleagues: int, interval: float, pause: float
) -> None:
    """So jobs of a dead executor start again within one and a half leases; or as often as the setting says."""
    sweeper = Sweeper(broker, desk, interval=interval)
    sweeper.state.note_colleagues(colleagues)
    assert await sweeper.tick() == pause


async def test_many_queues_are_swept_a_page_at_a_time_and_all_of_them_within_an_interval(
    broker: Broker, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeper = Sweeper(broker, desk, interval=6.0)
    queues = [f"q{n:03}" for n in range(249)] + ["mail"]
    sweeper.state.serve(Routing(dict.fromkeys(queues, 1)))
    swept: list[list[str]] = []
    run = broker.run

    async def noted(verb: Any, *args: Any) -> Any:
        swept[-1].append(str(verb.args[1]))
        return await run(verb, *args)

    monkeypatch.setattr(broker, "run", noted)
    silent_jobs(desk, 1)
    pauses: list[float] = []
    for _ in range(3):
        assert desk.pending() != {}
        swept.append([])
        pauses.append(await sweeper.tick())
    assert [len(page) for page in swept] == [100, 100, 50]
    assert [queue for page in swept for queue in sorted(page)] == [
        *sorted(queues[:200]),
        "mail",
        *queues[200:249],
    ]
    assert pauses == [2.0] * 3
    assert desk.pending() == {}


async def test_the_shortest_interval_is_a_millisecond(broker: Broker, desk: Desk) -> None:
    sweeper = Sweeper(broker, desk, interval=0.0005)
    silent_jobs(desk, 1)
    await sweeper.tick()
    assert desk.pending() == {}


async def test_a_sweep_goes_on_until_every_queue_has_been_looked_through(
    sweeper: Sweeper, desk: Desk, other: Desk, logged: list[EventDict]
) -> None:
    """The first queue needs one page, the second three."""
    silent_jobs(desk, 2)
    silent_jobs(other, 250)
    await sweeper.tick()
    assert (len(desk.waiting()), len(desk.pending())) == (2, 0)
    assert (len(other.waiting()), len(other.pending())) == (250, 0)
    assert [line[:2] for line in recovered(logged)] == [
        ("mail", 2),
        ("other", 100),
        ("other", 100),
        ("other", 50),
    ]


async def test_a_queue_that_fits_on_one_page_is_one_call(
    broker: Broker, desk: Desk, other: Desk, server: Server
) -> None:
    sweeper = Sweeper(broker, desk, other)
    await sweeper.tick()  # the server knows the script from here on
    silent_jobs(desk, 5)
    desk.redis.delete(desk.keys["swept"])
    before = calls(server)
    await sweeper.tick()
    assert (calls(server) - before, desk.pending()) == (2, {})


async def test_in_a_fleet_a_queue_that_another_executor_has_swept_is_only_looked_at(
    in_fleet: Sweeper, desk: Desk, other: Desk, server: Server
) -> None:
    await in_fleet.tick()
    silent_jobs(desk, 1)
    silent_jobs(other, 1)
    desk.redis.delete(desk.keys["swept"])
    before = calls(server)
    await in_fleet.tick()
    assert (calls(server) - before, desk.pending(), len(other.pending())) == (1, {}, 1)
    other.redis.delete(other.keys["swept"])
    await in_fleet.tick()
    assert other.pending() == {}


async def test_in_a_fleet_the_sweep_of_an_executor_with_a_longer_interval_counts(
    in_fleet: Sweeper, desk: Desk, other: Desk, server: Server
) -> None:
    await in_fleet.tick()
    desk.redis.set(desk.keys["swept"], "2", px=LEASE_MS)
    before = calls(server)
    await in_fleet.tick()
    assert calls(server) - before == 0


async def test_in_a_fleet_the_supervisor_learns_of_quarantine_between_two_sweeps(
    in_fleet: Sweeper, desk: Desk
) -> None:
    desk.executing(a_job())
    desk.recover()
    desk.take()
    desk.silence()
    for _ in range(3):
        await in_fleet.tick()
    assert in_fleet.signals.sent == [Signal.QUARANTINE] * 3


async def test_in_a_fleet_the_mark_of_a_version_before_lines_is_replaced(
    in_fleet: Sweeper, desk: Desk
) -> None:
    """An executor of that version does not tell that jobs wait in lines."""
    found = published(in_fleet.state, JobsWaitInLines)
    desk.enqueue(a_job("first", gates="c1:a"), a_job("second", gates="c1:a"))
    desk.redis.set(desk.keys["swept"], "1", px=round(INTERVAL * 900))
    await in_fleet.tick()
    assert (desk.redis.get(desk.keys["swept"]), found) == (b"2", [JobsWaitInLines("mail")])


async def test_in_a_fleet_a_mark_that_stays_longer_than_any_interval_stops_no_sweep(
    in_fleet: Sweeper, desk: Desk
) -> None:
    """The server's clock was set back."""
    silent_jobs(desk, 1)
    desk.redis.set(desk.keys["swept"], "2", px=10**9)
    await in_fleet.tick()
    assert (desk.waiting(), desk.pending()) == (["0"], {})


@pytest.mark.audit(skip="a key is of a wrong type")
async def test_in_a_fleet_a_damaged_mark_is_logged_and_stops_no_sweep_of_others(
    in_fleet: Sweeper, desk: Desk, other: Desk, logged: list[EventDict]
) -> None:
    silent_jobs(other, 1)
    desk.redis.hset(desk.keys["swept"], "x", "y")
    await in_fleet.tick()
    assert other.pending() == {}
    assert ("mail", "warning") in [(line.get("queue"), line["log_level"]) for line in logged]


async def test_a_job_that_has_been_delivered_too_often_is_dead_with_what_is_known_of_the_last_death(
    sweeper: Sweeper, desk: Desk, logged: list[EventDict]
) -> None:
    """A setting of the executor limits how often; the default is 4."""
    desk.enqueue(a_job())
    desk.redelivered("1", 4)
    desk.take("anna")
    desk.silence()
    sweeper.state.note_deaths({"anna": "killed by signal 9"})
    await sweeper.tick()
    failure = desk.record()["x"]
    assert desk.record()["s"] == "D"
    assert "fell silent 4 times" in failure
    assert "last: killed by signal 9" in failure
    assert recovered(logged) == [("mail", 0, 1, "warning")]


async def test_a_sweep_that_finds_nothing_is_not_worth_a_line(
    sweeper: Sweeper, desk: Desk, logged: list[EventDict]
) -> None:
    await sweeper.tick()
    assert recovered(logged) == []


def calls(server: Server) -> int:
    with server.client() as client:
        stats = client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "eval"))
