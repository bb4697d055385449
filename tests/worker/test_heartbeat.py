"""The heartbeat: leases are renewed, what was lost or stranded is named, and who may judge others knows when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from structlog.typing import EventDict

from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import Step
from fennelq.broker.verbs.executors import Beat
from fennelq.model.routing import Routing
from fennelq.worker.bus import BellConnected, CancelRequested, EntriesStranded, LeasesLost
from fennelq.worker.processes.signals import Signal
from fennelq.worker.running.held import HeldJobs, Token
from fennelq.worker.state import State
from fennelq.worker.threads.heartbeat import BeatResult, Heartbeat
from fennelq.worker.threads.lease import Beaten, Lease
from tests.broker.desk import Desk, a_job, some_jobs
from tests.kit.waiting import aeventually, eventually
from tests.worker.states import NotedSignals, published, state_of

pytestmark = pytest.mark.audit(unfinished=True)

LEASE = 60.0
INTERVAL = 0.25
NOTHING = BeatResult([], [], 0)


class Patient(BlockingBroker):
    """Remembers how long it was to wait for the replies. From the first one on, the server's clock goes with the
    test's."""

    def __init__(self, url: str, now: Callable[[], float]) -> None:
        super().__init__(address_of(url))
        self.timeouts: list[float] = []
        self._now = now
        self._offset_ms: float | None = None

    def run_each(self, steps: Sequence[Step[Any]], timeout: float = -1.0) -> list[Any]:
        self.timeouts.append(timeout)
        return [self._dated(reply) for reply in super().run_each(steps)]

    def ask(self, command: Any, timeout: float = -1.0) -> Any:
        self.timeouts.append(timeout)
        offset: float | None = self._offset_ms
        if offset is None:
            offset = self._offset_ms = float(super().ask(command)) - self._now() * 1000
        return round(offset + self._now() * 1000)

    def set_clock(self, seconds: float) -> None:
        """Set the server's clock forward (or, below 0, back)."""
        assert self._offset_ms is not None
        self._offset_ms += seconds * 1000

    def _dated(self, reply: Any) -> Any:
        if not isinstance(reply, Beat):
            return reply
        if self._offset_ms is None:
            self._offset_ms = reply.now_ms - self._now() * 1000
        return reply._replace(now_ms=round(self._offset_ms + self._now() * 1000))


class Noting(Heartbeat):
    """Keeps what its rounds have found."""

    def __init__(self, state: State, broker: BlockingBroker) -> None:
        super().__init__(state, broker)
        self.found: list[BeatResult] = []

    def beat(self) -> BeatResult:
        found = super().beat()
        self.found.append(found._replace(beaten=None))
        return found


class HeldByHand(HeldJobs):
    """What the test holds, or an error."""

    def __init__(self) -> None:
        super().__init__()
        self.now: list[Token] = []
        self.without_a_run: list[Token] = []
        self.wrong: BaseException | None = None

    def never_began(self) -> list[Token]:
        return self.without_a_run

    def tokens(self) -> list[Token]:
        if self.wrong is not None:
            raise self.wrong
        return self.now


class Beating:
    """A heartbeat whose beats a test makes one by one, at moments of its own."""

    def __init__(self, url: str, *desks: Desk, lease: float = LEASE) -> None:
        self.now = 1000.0
        self.held = HeldByHand()
        self.pauses: list[float | None] = []
        self.broker = Patient(url, lambda: self.now)
        self.state = state_of(
            Broker(address_of(url)), *(desk.keys for desk in desks), lease=lease, heartbeat_interval=INTERVAL
        )
        self.state.held, self.lease = self.held, self.state.lease
        self.state.signals = self.signals = NotedSignals()
        self.heartbeat = Noting(self.state, self.broker)
        self.found = self.heartbeat.found

    def beats(self, *moments: float, wrong: BaseException | None = None) -> None:
        """The thread beats at these moments, and its clock stays at the last."""
        self.held.wrong = wrong
        schedule = Schedule(self, moments)
        setattr(self.lease, "ended", schedule)  # noqa: B010
        setattr(self.lease, "soon", schedule)  # noqa: B010
        self.heartbeat._run()


class Schedule:
    """Stands in for the events of the thread: the one for which it waits between two beats, and the one of its end."""

    def __init__(self, beating: Beating, moments: Sequence[float]) -> None:
        self._beating, self._moments, self._over = beating, list(moments), False

    def wait(self, pause: float | None) -> None:
        self._beating.pauses.append(pause)
        self._over = not self._moments
        if self._moments:
            self._beating.now = self._moments.pop(0)

    def clear(self) -> None:
        """It was not set."""

    def is_set(self) -> bool:
        return self._over


@pytest.fixture
def beating(redis_url: str, desk: Desk, other: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beating]:
    beating = Beating(redis_url, desk, other)
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: beating.now)
    yield beating
    beating.broker.close()


# What a beat does and finds


def test_a_beat_renews_what_is_held_in_every_queue_and_nothing_else(
    beating: Beating, desk: Desk, other: Desk
) -> None:
    held = [*desk.executing(*some_jobs(3)), *other.executing(*some_jobs(3))]
    desk.silent(held[:3], 20_000)
    other.silent(held[3:], 20_000)
    beating.held.now = [("mail", "s", one.entry) for one in held[:2]]
    beating.held.now += [("other", "s", one.entry) for one in held[3:5]]
    beating.heartbeat.beat()
    assert beating.found == [NOTHING]
    for queue, ours in ((desk, held[:3]), (other, held[3:])):
        first, second, third = queue.idle(*ours)
        assert max(first, second) < 15_000
        assert third >= 20_000


def test_what_was_taken_from_us_is_named_with_its_queue(beating: Beating, desk: Desk, other: Desk) -> None:
    held = desk.executing(*some_jobs(3))
    (kept,) = other.executing(a_job())
    desk.release(held[:2])
    beating.held.now = [("mail", "s", one.entry) for one in held] + [("other", "s", kept.entry)]
    found = beating.heartbeat.beat()
    assert sorted(found.lost) == [("mail", "s", held[0].entry), ("mail", "s", held[1].entry)]
    assert found.stranded == []


def test_what_is_ours_and_unknown_here_for_half_a_lease_is_stranded(
    beating: Beating, desk: Desk, other: Desk
) -> None:
    held = other.executing(*some_jobs(3))
    other.silent(held[:2], round(LEASE * 500))
    other.silent(held[2:], round(LEASE * 500) - 15_000)
    beating.state.note_unsure("other")
    found = beating.heartbeat.beat()
    assert found.stranded == [("other", "s", held[0].entry), ("other", "s", held[1].entry)]
    assert found.lost == []


def test_jobs_in_quarantine_are_counted_over_all_queues(beating: Beating, desk: Desk, other: Desk) -> None:
    for queue, number in ((desk, 1), (other, 2)):
        for job in some_jobs(number):
            queue.enqueue(job)
            queue.redelivered(job.key, 3, "iso")
    beating.state.note_unsure("mail")
    beating.state.note_unsure("other")
    assert beating.heartbeat.beat().quarantined == 3


# Which queues are beaten


class Asked:
    """The queues that a heartbeat has asked, beat by beat."""

    def __init__(self, beating: Beating, monkeypatch: pytest.MonkeyPatch) -> None:
        self.beats: list[list[str]] = []
        run_each = beating.broker.run_each

        def noted(steps: Sequence[Any], timeout: float = -1.0) -> list[Any]:
            names = [str(verb.args[0]).removeprefix("fq:{shop/").removesuffix("}:") for verb in steps]
            self.beats.append(sorted(names))
            return run_each(steps, timeout)

        monkeypatch.setattr(beating.broker, "run_each", noted)


def serve(beating: Beating, number: int) -> list[str]:
    """Serve so many queues; returns their names."""
    names = [f"q{n:04}" for n in range(number)]
    beating.state.serve(Routing(dict.fromkeys(names, 1)))
    return names


def beats_of_half_a_lease(beating: Beating) -> list[Token]:
    """Beat for half a lease; returns the stranded entries."""
    found: list[Token] = []
    for _ in range(round(LEASE / INTERVAL / 2)):
        found += beating.heartbeat.beat().stranded
        beating.now += INTERVAL
    return found


@pytest.mark.parametrize(("number", "most"), [(1, 1), (240, 2), (1000, 9), (60_000, 500)])
def test_every_queue_that_was_read_is_beaten_within_half_a_lease_a_part_at_a_time(
    beating: Beating, monkeypatch: pytest.MonkeyPatch, number: int, most: int
) -> None:
    names, asked = serve(beating, number), Asked(beating, monkeypatch)
    for name in names:
        beating.state.note_read(name)
    beats_of_half_a_lease(beating)
    beaten = {name for beat in asked.beats for name in beat}
    assert max(map(len, asked.beats)) == most
    if number <= 500 * len(asked.beats):
        assert beaten == set(names)
    assert len(beaten) == min(number, most * len(asked.beats))


def test_of_queues_from_which_no_job_was_taken_each_beat_asks_one(
    beating: Beating, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, asked = serve(beating, 1000), Asked(beating, monkeypatch)
    beating.state.note_read(names[4])
    beats_of_half_a_lease(beating)
    assert {len(beat) for beat in asked.beats} == {1}
    assert [names[4]] in asked.beats
    assert len({beat[0] for beat in asked.beats}) >= 100


def test_with_queues_there_is_always_a_beat_also_when_no_job_is_held(
    beating: Beating, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user of Redis who may not run it shows up before a job depends on it."""
    serve(beating, 3)
    asked = Asked(beating, monkeypatch)
    for _ in range(50):
        beating.heartbeat.beat()
    assert {len(beat) for beat in asked.beats} == {1}
    assert len(asked.beats) == 50


def test_a_queue_with_a_held_job_is_beaten_each_time(
    beating: Beating, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, asked = serve(beating, 3), Asked(beating, monkeypatch)
    (held,) = desk.executing(a_job())
    beating.held.now = [("mail", "s", held.entry)]
    for _ in range(3):
        beating.heartbeat.beat()
    assert asked.beats == [["mail", name] for name in names]


def test_a_queue_from_which_a_fetch_got_no_reply_is_beaten_each_time_for_two_leases(
    beating: Beating, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it may have taken is stranded, which shows after half a lease."""
    serve(beating, 1)
    asked = Asked(beating, monkeypatch)
    for queue in ("mail", "other"):
        beating.state.note_unsure(queue)
    for seconds in (0.0, LEASE, LEASE, 1.0):
        beating.now += seconds
        beating.heartbeat.beat()
    assert [{"mail", "other"} <= set(beat) for beat in asked.beats[:3]] == [True] * 3
    assert asked.beats[3:] == [["q0000"]]


def test_an_entry_that_an_executor_does_not_know_of_is_found_within_half_a_lease(
    beating: Beating, other: Desk
) -> None:
    held = other.executing(a_job())
    other.silent(held, round(LEASE * 1000) - 1)
    serve(beating, 100)
    beating.state.serve(Routing({**beating.state.routing.weights, "other": 1}))
    beating.state.note_read("other")
    found = beats_of_half_a_lease(beating)
    assert set(found) == {("other", "s", held[0].entry)}


def test_a_run_that_never_began_is_stranded_at_once(beating: Beating, desk: Desk) -> None:
    """Its token says so: its entry need not have been pending for half a lease, and may be gone already."""
    (held,) = desk.executing(a_job())
    beating.held.without_a_run = [("mail", "s", held.entry), ("left", "s", "0-1")]
    found = beating.heartbeat.beat()
    assert found.stranded == [("mail", "s", held.entry), ("left", "s", "0-1")]
    assert found.lost == []


def test_a_beat_brings_the_servers_clock(beating: Beating, desk: Desk) -> None:
    before = desk.now()
    beating.beats(1000)
    assert before <= beaten_ms(beating.lease) <= desk.now()


@pytest.mark.parametrize(("lease", "seconds"), [(60.0, 15.0), (8.0, 2.0)])
def test_a_reply_is_waited_for_no_longer_than_a_quarter_of_the_lease(
    redis_url: str, desk: Desk, lease: float, seconds: float
) -> None:
    for queues in ([desk], []):
        beating = Beating(redis_url, *queues, lease=lease)
        beating.heartbeat.beat()
        assert beating.broker.timeouts == [seconds]
        beating.broker.close()


@pytest.mark.parametrize(("lease", "seconds"), [(0.9, 0.3), (2.4, 0.8), (3.6, 1.0), (4.4, 1.1)])
def test_with_a_short_lease_a_reply_is_waited_for_up_to_a_second_or_a_third_of_the_lease(
    lease: float, seconds: float
) -> None:
    assert Lease(lease, INTERVAL).reply_timeout == pytest.approx(seconds)


def test_an_executor_that_serves_no_queue_yet_is_steady_after_a_lease_all_the_same(
    redis_url: str, desk: Desk, monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    """When it learns of a queue, it may judge others there at once."""
    beating = Beating(redis_url)
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: beating.now)
    beating.beats(1000, 1020, 1040, 1060)
    assert beating.lease.steady
    assert beaten_ms(beating.lease) > 0
    beating.state.serve(Routing({desk.keys.queue: 1}))
    beating.beats(1061)
    assert beating.lease.steady
    assert beaten_ms(beating.lease) > 0
    assert beating.found == [NOTHING] * 5
    assert logged == []
    beating.broker.close()


def test_an_executor_whose_queues_are_all_damaged_stays_steady(
    beating: Beating, monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    """Redis itself replies in time, so a silent executor is silent for another reason than an outage."""
    beating.beats(1000, 1020, 1040, 1060)
    wrong = ReplyError("WRONGTYPE it is no stream")

    def refused(steps: Sequence[Any], timeout: float = -1.0) -> list[Any]:
        del timeout
        return [wrong] * len(steps)

    monkeypatch.setattr(beating.broker, "run_each", refused)
    beating.beats(1061)
    assert beating.lease.steady
    assert [line["event"] for line in logged] == ["trouble"]


def beaten_ms(lease: Lease) -> int:
    return lease.beaten()[0]


# The server's clock


def test_how_long_ago_the_last_beat_was_answered_is_known_in_milliseconds(beating: Beating) -> None:
    beating.beats(1000)
    beating.now = 1003.25
    assert beating.lease.beaten()[1] == 3250


@pytest.mark.parametrize(
    ("server_ms", "jump"),
    [(26_000, 14.0), (16_000, 4.0), (12_000, 0.0), (10_000, 0.0), (9_000, -1.0), (-4_000, -14.0)],
)
def test_a_jump_of_the_servers_clock_is_what_no_round_trip_explains(server_ms: int, jump: float) -> None:
    """Between two beats 4 to 6 seconds have passed, depending on when the server read its clock."""
    before = Beaten(6_000, sent=100.0, answered=101.0)
    assert Beaten(server_ms, sent=105.0, answered=106.0).jump_since(before) == jump


@pytest.mark.parametrize("seconds", [LEASE / 4 + 1, -LEASE / 4 - 1])
def test_after_a_jump_of_the_servers_clock_an_executor_holds_off_for_a_lease(
    beating: Beating, logged: list[EventDict], seconds: float
) -> None:
    """Every executor looks silent until its next beat."""
    beating.beats(1000, 1020, 1040, 1060)
    assert beating.lease.steady
    beating.broker.set_clock(seconds)
    beating.beats(1061, 1081, 1101, 1120)
    assert (beating.lease.answered, beating.lease.steady) == (True, False)
    beating.beats(1121)
    assert beating.lease.steady
    assert [(line["event"], line["seconds"], line["log_level"]) for line in logged] == [
        ("server_clock_jumped", seconds, "warning")
    ]


def test_a_jump_is_seen_although_no_beat_in_between_has_shown_the_time(
    monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    """The keys of all its queues were damaged for a moment."""
    lease, ahead = Lease(LEASE, INTERVAL), 0

    def at(now: float) -> Beaten:
        monkeypatch.setattr("fennelq.clock.monotonic", lambda: now)
        return Beaten(round(now + ahead) * 1000, now, now)

    for now in (1000, 1020, 1040, 1060):
        lease.renewed(at(now))
    at(1061)
    lease.renewed(None)
    assert lease.steady
    assert beaten_ms(lease) == 1_060_000
    ahead = 16
    lease.renewed(at(1062))
    assert not lease.steady
    assert [(line["event"], line["seconds"]) for line in logged] == [("server_clock_jumped", 16.0)]


def test_an_executor_whose_queues_were_damaged_from_the_beginning_is_steady_after_a_lease(
    monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    lease, moments = Lease(LEASE, INTERVAL), [1000.0]
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: moments[-1])
    for moment in (1000.0, 1020.0, 1040.0, 1060.0):
        moments.append(moment)
        lease.renewed(None)
    assert (lease.steady, beaten_ms(lease)) == (True, 0)
    lease.renewed(Beaten(5_000, 1060.0, 1060.0))
    assert (lease.steady, beaten_ms(lease)) == (True, 5_000)
    assert logged == []


@pytest.mark.parametrize("seconds", [LEASE / 4, -LEASE / 4])
def test_a_jump_of_the_servers_clock_by_a_quarter_of_the_lease_is_harmless(
    beating: Beating, logged: list[EventDict], seconds: float
) -> None:
    beating.beats(1000, 1020, 1040, 1060)
    beating.broker.set_clock(seconds)
    beating.beats(1061)
    assert beating.lease.steady
    assert logged == []


# Who may judge others


def test_before_the_first_beat_an_executor_is_neither_answered_nor_steady(beating: Beating) -> None:
    beating.now = 0.0
    assert (beating.lease.answered, beating.lease.steady) == (False, False)


def test_an_executor_is_steady_after_a_whole_lease_of_beats(beating: Beating) -> None:
    beating.beats(1000, 1020, 1040, 1059)
    assert (beating.lease.answered, beating.lease.steady) == (True, False)
    beating.beats(1060)
    assert (beating.lease.answered, beating.lease.steady) == (True, True)
    assert beating.found == [NOTHING] * 5


def test_an_executor_whose_process_has_just_started_is_steady_at_no_moment_of_its_clock(
    beating: Beating,
) -> None:
    """Clocks that only measure may begin at 0, at the start of the machine."""
    beating.beats(0)
    assert (beating.lease.answered, beating.lease.steady) == (True, False)
    beating.beats(20, 40, 60)
    assert beating.lease.steady


def test_an_executor_is_steady_no_longer_than_half_a_lease_after_its_last_beat(beating: Beating) -> None:
    beating.beats(1000, 1020, 1040, 1060)
    beating.now = 1060 + LEASE / 2 - 1
    assert beating.lease.steady
    beating.now = 1060 + LEASE / 2
    assert not beating.lease.steady


def test_an_executor_is_answered_an_interval_longer(beating: Beating) -> None:
    beating.beats(1000)
    beating.now = 1000 + LEASE / 2 + INTERVAL / 2
    assert beating.lease.answered
    beating.now = 1000 + LEASE / 2 + INTERVAL
    assert not beating.lease.answered


def test_after_a_pause_of_its_own_an_executor_holds_off_for_two_leases(beating: Beating) -> None:
    beating.beats(1000, 1020, 1040, 1060)
    beating.beats(1091, *range(1111, 1091 + 120, 20))
    assert not beating.lease.steady
    beating.beats(1091 + 119)
    assert not beating.lease.steady
    beating.beats(1091 + 120)
    assert beating.lease.steady


def test_beats_half_a_lease_apart_are_no_pause(beating: Beating) -> None:
    beating.beats(1000, 1030, 1060)
    assert beating.lease.steady


def test_a_beat_without_an_answer_costs_an_executor_its_steadiness_for_a_lease(
    beating: Beating, logged: list[EventDict]
) -> None:
    beating.beats(1000, 1020, 1040, 1060)
    beating.beats(1061, wrong=OSError("no answer"))
    assert (beating.lease.answered, beating.lease.steady) == (False, False)
    (line,) = logged
    assert line["event"] == "redis_trouble"
    assert "cannot be reached: no answer" in line["problem"]
    assert len(beating.found) == 4
    beating.beats(1062, 1082, 1102, 1121)
    assert (beating.lease.answered, beating.lease.steady) == (True, False)
    beating.beats(1122)
    assert beating.lease.steady


def test_an_outage_is_over_for_the_heartbeat_when_a_beat_is_answered(
    redis_url: str, desk: Desk, monkeypatch: pytest.MonkeyPatch, logged: list[EventDict]
) -> None:
    beating = Beating(redis_url, desk)
    monkeypatch.setattr("fennelq.clock.monotonic", lambda: beating.now)
    beating.beats(1000, 1001, wrong=OSError("no answer"))
    assert [line["event"] for line in logged] == ["redis_trouble"]
    beating.beats(1002, 1003)
    assert [line["event"] for line in logged] == ["redis_trouble", "redis_is_back"]
    beating.broker.close()


def test_after_a_pause_and_trouble_one_lease_is_enough(beating: Beating) -> None:
    beating.beats(1000, 1020, 1091)
    beating.beats(1092, wrong=OSError("no answer"))
    beating.beats(1093, 1113, 1133, 1153)
    assert beating.lease.steady


def test_the_first_beat_is_made_at_once_and_the_others_in_their_interval(beating: Beating) -> None:
    beating.beats(1000, 1001, 1002)
    assert beating.pauses == [0, INTERVAL, INTERVAL, INTERVAL]


def test_after_trouble_the_next_attempt_comes_soon_and_not_at_once(redis_url: str, desk: Desk) -> None:
    beating = Beating(redis_url, desk)
    beating.beats(1000, 1001, wrong=OSError("no answer"))
    assert beating.pauses == [0, INTERVAL, INTERVAL]


# The thread


def test_the_thread_beats_until_it_is_ended_and_keeps_no_process_alive(redis_url: str, desk: Desk) -> None:
    beating = Beating(redis_url, desk)
    beating.heartbeat.start()
    eventually(lambda: beating.found)
    (thread,) = beating_threads()
    assert thread.daemon
    beating.heartbeat.end()
    eventually(lambda: not beating_threads())
    beating.broker.close()


def test_a_beat_during_which_the_executor_ends_warns_of_nothing(
    redis_url: str, desk: Desk, logged: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop that would get what the beat has found is closed by then."""
    state = state_of(Broker(address_of(redis_url)), desk.keys, lease=LEASE, heartbeat_interval=INTERVAL)
    heartbeat = Heartbeat(state, BlockingBroker(address_of(redis_url)))

    def ended_meanwhile(fact: object) -> None:
        heartbeat.end()
        raise RuntimeError("Event loop is closed")

    monkeypatch.setattr(state.bus, "publish_from_thread", ended_meanwhile)
    monkeypatch.setattr(
        heartbeat, "beat", lambda: BeatResult([("mail", "s", "1-0")], [], 0, Beaten(1, 1.0, 1.0))
    )
    heartbeat.start()
    eventually(lambda: not beating_threads())
    assert logged == []
    assert not state.lease.dead


def test_a_thread_that_ends_unasked_counts_as_dead(beating: Beating) -> None:
    beating.beats(1000)
    assert not beating.lease.dead
    with pytest.raises(SystemExit):
        beating.beats(1001, 1002, wrong=SystemExit())
    assert beating.lease.dead


def beating_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fennelq-heartbeat"]


# Requests to stop


def test_a_beat_names_the_jobs_that_were_asked_to_stop_with_their_queues(
    beating: Beating, desk: Desk, other: Desk
) -> None:
    (first,), (second, third) = desk.executing(a_job()), other.executing(*some_jobs(2))
    beating.held.now = [("mail", "s", first.entry), *(("other", "s", one.entry) for one in (second, third))]
    desk.cancel("1", why="no longer needed")
    other.cancel("2", why="too slow")
    found = beating.heartbeat.beat()
    assert sorted(found.stopping) == [
        CancelRequested(("mail", "s", first.entry), "no longer needed"),
        CancelRequested(("other", "s", third.entry), "too slow"),
    ]


async def test_the_requests_that_a_beat_finds_are_published_one_by_one(beating: Beating, desk: Desk) -> None:
    held = desk.executing(*some_jobs(2))
    beating.held.now = [("mail", "s", one.entry) for one in held]
    desk.cancel("1", "2")
    beating.state.bus.attach(asyncio.get_running_loop())
    heard = published(beating.state, CancelRequested)
    beating.beats(1000)
    await aeventually(lambda: len(heard) == 2)
    assert {request.token for request in heard} == set(beating.held.now)


async def test_what_a_beat_finds_is_published(beating: Beating, desk: Desk, other: Desk) -> None:
    held = desk.executing(*some_jobs(2))
    desk.release(held[:1])
    other.enqueue(a_job())
    other.redelivered("1", 3, "iso")
    beating.held.now = [("mail", "s", one.entry) for one in held]
    beating.held.without_a_run = [("left", "s", "0-1")]
    beating.state.note_unsure("other")
    beating.state.bus.attach(asyncio.get_running_loop())
    lost, stranded = published(beating.state, LeasesLost), published(beating.state, EntriesStranded)
    beating.beats(1000)
    await aeventually(lambda: lost and stranded)
    assert lost == [LeasesLost([("mail", "s", held[0].entry)])]
    assert stranded == [EntriesStranded([("left", "s", "0-1")])]
    assert beating.signals.sent == [Signal.QUARANTINE]


async def test_a_beat_that_finds_nothing_publishes_nothing(beating: Beating) -> None:
    beating.state.bus.attach(asyncio.get_running_loop())
    lost, stranded = published(beating.state, LeasesLost), published(beating.state, EntriesStranded)
    beating.beats(1000)
    await asyncio.sleep(0)
    assert (lost, stranded, beating.signals.sent) == ([], [], [])


class Resting(Lease):
    """Notes when the heartbeat waits for the next beat, which is minutes away."""

    def __init__(self) -> None:
        super().__init__(3600, 900)
        self.rests = threading.Semaphore(0)

    def ends_within(self, pause: float) -> bool:
        self.rests.release()
        return super().ends_within(pause)


def test_when_messages_arrive_again_it_beats_at_once_if_a_job_of_these_queues_is_held(
    redis_url: str, desk: Desk
) -> None:
    state, lease, held = state_of(Broker(address_of(redis_url)), desk.keys), Resting(), HeldByHand()
    state.held, state.lease = held, lease
    heartbeat = Heartbeat(state, BlockingBroker(address_of(redis_url)))
    before = set(threading.enumerate())
    heartbeat.start()
    (thread,) = set(threading.enumerate()) - before
    for _ in range(2):  # before the first beat, and after it
        assert lease.rests.acquire(timeout=30)
    state.bus.publish(BellConnected(["mail"]))
    held.now = [("third", "s", "0-1"), ("mail", "s", "0-1")]
    state.bus.publish(BellConnected(["other"]))
    assert not lease.soon.is_set()
    state.bus.publish(BellConnected(["other", "mail"]))
    assert lease.rests.acquire(timeout=30)
    heartbeat.end()
    eventually(lambda: not thread.is_alive())
    assert not lease.rests.acquire(blocking=False)
