"""A random walk over the scripts: executors that lose replies, pause and come back as zombies, clients that repeat
themselves, operators with sharp tools. After every step every job is in exactly one place, nothing that was
delivered can be forgotten, and no outcome, once written, ever changes. A job that was asked to stop runs no more, and
ends as cancelled unless it succeeds. While an executor sleeps that reads a lane, an
entry of this lane that no executor has taken has woken one.

Longer walks: `WALKS=5000 pytest tests/broker/test_walk.py`. A failure prints its steps, shortened, as a program.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Final, TypeVar, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fennelq.broker import verbs
from fennelq.broker.keys import QUARANTINE
from fennelq.broker.verbs.runs import Settled
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome, cancelled, died, failure_to_wire, not_known, succeeded
from fennelq.model.wire import AnyWireJob
from tests.broker.desk import APP, FAILURE, LIFETIMES, QUEUE, READ, Bells, Desk, Entry, a_job, shown
from tests.kit.audit import audit
from tests.kit.jobs import altered
from tests.kit.server import Server

T = TypeVar("T")

WALKS: Final = int(os.environ.get("WALKS", "100"))
STEPS: Final = 60

READS: Final = {"anna": READ, "berta": READ, "clara": ("s:high",), "dora": ("s", "s:low")}
"""Executors, and the lanes that each reads."""
SLEEPERS: Final = ("anna", "clara", "dora")
"""One for each set of sleepers. Of several, Redis wakes any one, and Hypothesis could not repeat a walk."""
EXECUTORS = st.sampled_from(list(READS))
ANY: Final = st.integers(0, 10_000)
"""Which one of those there are."""
RARELY: Final = st.sampled_from([False, False, False, True])
OFTEN: Final = st.sampled_from([True, True, True, False])
KINDS = st.sampled_from("SSSNDDRRZKU")
LANES: Final = (*READ, QUARANTINE)
HOUR = 3_600_000
ASKED: Final = '{"cancelled":"asked"}'


@st.composite
def calls(draw: st.DrawFn) -> dict[str, object]:
    """The options of a job; due times are long past or far away, so that no clock decides about a step."""
    idempotency = draw(st.sampled_from(["", "", "", "app:welcome:a", "app:welcome:b"]))
    return {
        "priority": draw(st.sampled_from(["normal", "normal", "high", "low"])),
        "at_ms": draw(st.sampled_from([0, 0, 0, 1, 1, 10**13])),
        "expires_ms": draw(st.sampled_from([0, 0, 0, HOUR])),
        "idempotency": idempotency,
        "window_ms": draw(st.sampled_from([0, HOUR])) if idempotency else 0,
        "nonce": draw(st.sampled_from(["", "mine"])),
    }


class Walk(RuleBasedStateMachine):
    """What the walker knows: whom it sent, what it was handed, and which ends it has seen."""

    server: Server

    def __init__(self) -> None:
        super().__init__()
        self.server.flush()
        self.desk = Desk(self.server)
        self.bells = {self.desk.keys.bell(executor): executor for executor in READS}
        self.subscription = Bells(self.desk.redis, list(self.bells)).__enter__()
        self.rung: dict[str, set[str]] = {executor: set() for executor in READS}
        """Executor → lanes of the messages that it has not answered yet."""
        self.jobs: dict[str, AnyWireJob] = {}
        self.delivered: list[Delivery] = []
        self.settled: set[tuple[str, str, str]] = set()
        self.ended: dict[str, tuple[str, list[str]]] = {}
        self.tries: Counter[str] = Counter()
        self.fences: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.asked: set[str] = set()
        """Running jobs that were asked to stop."""
        self.lost: set[str] = set()
        """Robbed of a record or an entry: nothing is asked of them any more."""
        self.numbers = count(1)

    # Clients

    @initialize(drawn=st.lists(calls(), min_size=1, max_size=6))
    def begin(self, drawn: list[dict[str, object]]) -> None:
        for call in drawn:
            self.enqueue(call)

    @rule(call=calls())
    def enqueue(self, call: dict[str, object]) -> None:
        job = a_job(str(next(self.numbers)), **call)
        (answer,) = self.desk.enqueue(job)
        if answer == 1:
            self.jobs[job.key] = job
        else:
            assert job.carried["idempotency"]
            assert answer.decode() in (*self.jobs, *self.lost)

    @rule(number=st.integers(2, 5), priority=st.sampled_from(["normal", "high", "low"]))
    def enqueue_a_batch(self, number: int, priority: str) -> None:
        batch = [a_job(str(next(self.numbers)), priority=priority) for _ in range(number)]
        assert self.desk.enqueue(*batch) == [1] * number
        self.jobs |= {job.key: job for job in batch}

    @precondition(lambda self: self.jobs)
    @rule(which=ANY)
    def enqueue_again(self, which: int) -> None:
        job = pick(list(self.jobs.values()), which)
        assert self.desk.enqueue(job) == [0]

    @precondition(lambda self: self.jobs)
    @rule(which=ANY)
    def enqueue_another_call_of_the_same_id(self, which: int) -> None:
        job = pick(list(self.jobs.values()), which)
        (answer,) = self.desk.enqueue(altered(job, nonce="theirs", args=b"[43]"))
        assert answer == -1

    @precondition(lambda self: self.jobs)
    @rule(which=ANY)
    def cancel(self, which: int) -> None:
        key = pick(list(self.jobs), which)
        before = self.desk.record(key)
        (answer,) = self.desk.cancel(key, why="asked")
        assert (answer == 2) == (before.get("s") == "X")
        if answer == 1:
            self.end(key, "K", ASKED)
        elif answer == 2:
            self.asked.add(key)
            lane, _, entry = before["p"].partition("/")
            owner = before["w"].partition(" ")[0]
            # The executor in quarantine has no ears here.
            assert owner not in READS or (owner, f"stop {lane} {entry} asked") in self.hear()

    @precondition(lambda self: self.jobs)
    @rule(which=ANY, channel=st.sampled_from(["me", "you"]))
    def watch(self, which: int, channel: str) -> None:
        key = pick(list(self.jobs), which)
        ((code, _, envelope),) = self.desk.do(verbs.jobs.watch, channel, [key])
        if key in self.ended:
            letter, result = self.ended[key]
            assert (code, envelope) == ("end", result[0].encode() if result else b"")
            assert letter in "SNDK"

    # Executors

    @rule(who=EXECUTORS, free=st.integers(0, 6), sleeps=OFTEN, reply_lost=RARELY)
    def fetch(self, who: str, free: int, sleeps: bool, reply_lost: bool) -> None:
        sleeps = sleeps and who in SLEEPERS
        catch = self.desk.fetch(who, free=free, lanes=READS[who], sleeps=sleeps)
        if free:
            self.rung[who].clear()
        # With a lost reply, the executor does not know that it sleeps.
        assert not (sleeps and catch.drained) or self.sleeps(who)
        self.receive(catch.deliveries, reply_lost)

    @precondition(lambda self: any(self.rung.values()))
    @rule(which=ANY, free=st.integers(1, 2))
    def answer(self, which: int, free: int) -> None:
        """An executor that was woken asks for jobs."""
        rung = [who for who, lanes in self.rung.items() if lanes]
        self.fetch(pick(rung, which), free=free, sleeps=True, reply_lost=False)

    @rule(last=EXECUTORS)
    def all_fall_asleep(self, last: str) -> None:
        for who in sorted(READS, key=lambda one: one == last):
            self.fetch(who, free=100, sleeps=True, reply_lost=False)

    @rule(free=st.integers(0, 6), reply_lost=RARELY)
    def fetch_in_quarantine(self, free: int, reply_lost: bool) -> None:
        self.receive(self.desk.fetch("isolde", free=free, lanes=[QUARANTINE]).deliveries, reply_lost)

    def receive(self, deliveries: Sequence[Delivery], reply_lost: bool) -> None:
        self.notice_the_end("expired", "asked")
        for delivery in deliveries:
            assert delivery.key not in self.ended
            assert delivery.key not in self.asked
            assert delivery.fence > self.fences[delivery.key] or delivery.key in self.lost
            self.fences[delivery.key] = delivery.fence
        if not reply_lost:
            self.delivered += deliveries

    @rule(who=EXECUTORS)
    def pass_on(self, who: str) -> None:
        """It has no free slot."""
        lanes, self.rung[who] = sorted(self.rung[who]), set()
        assert self.desk.do(verbs.runs.ring, lanes) <= len(lanes)

    @rule(who=EXECUTORS)
    def stop(self, who: str) -> None:
        """It takes no further job. A message that was under way is passed on after that."""
        self.desk.do(verbs.executors.stay_awake, who)
        assert not self.sleeps(who)
        self.hear()
        self.pass_on(who)

    @rule(lane=st.sampled_from(["", *READ]), number=st.sampled_from([1, 3, 30]))
    def killed_executors_leave_their_names(self, lane: str, number: int) -> None:
        """Fewer than a script skips."""
        if len(self.desk.sleepers(lane)) + number < 100:
            self.desk.sleep(*(f"killed-{next(self.numbers)}" for _ in range(number)), lane=lane)

    @rule(who=EXECUTORS)
    def an_entry_is_read_and_does_not_start(self, who: str) -> None:
        """As an executor of an earlier version reads it, that blocks."""
        self.desk.read(who, READS[who])

    @precondition(lambda self: self.delivered)
    @rule(batch=st.lists(st.tuples(ANY, KINDS), min_size=1, max_size=5))
    def finish(self, batch: list[tuple[int, str]]) -> None:
        """Of what was ever handed out: some of it is current, some a zombie's, some was settled before."""
        self.settle([(pick(self.delivered[-12:], which), kind) for which, kind in batch])

    @precondition(lambda self: self.delivered)
    @rule(which=ANY, number=st.integers(1, 3))
    def release(self, which: int, number: int) -> None:
        first = which % len(self.delivered[-12:])
        self.desk.release(self.delivered[-12:][first : first + number])

    @rule(who=EXECUTORS)
    def good_bye(self, who: str) -> None:
        self.desk.do(verbs.executors.close_consumer, who)
        assert not self.sleeps(who)
        self.hear()
        self.pass_on(who)

    # Services

    @rule(limit=st.integers(1, 3))
    def promote(self, limit: int) -> None:
        self.desk.do(verbs.queues.promote, limit)

    @rule(limit=st.integers(1, 3), max_deliveries=st.sampled_from([2, 3, 4]))
    def sweep(self, limit: int, max_deliveries: int) -> None:
        """All leases ran out: jobs go to others while their executors know nothing of it."""
        self.desk.recover(limit=limit, max_deliveries=max_deliveries)
        self.notice_the_end("crash_loop", "asked")

    @rule(who=EXECUTORS, held=st.lists(ANY, max_size=4))
    def beat(self, who: str, held: list[int]) -> None:
        """It renews what is held, names what is not as it should be, and moves nothing."""
        believed = [pick(self.delivered[-12:], which) for which in held if self.delivered]
        before = [self.desk.pending(lane) for lane in LANES]
        beat = self.desk.do(verbs.executors.beat, who, 0, [(one.lane, one.entry) for one in believed])
        after = [self.desk.pending(lane) for lane in LANES]
        owned = {
            (lane, entry)
            for lane, owners in zip(LANES, before, strict=True)
            for entry in owners
            if owners[entry] == who
        }
        tokens = {(delivery.lane, delivery.entry) for delivery in believed}
        assert set(beat.lost) == tokens - owned
        assert set(beat.stranded) == owned - tokens
        assert all(now.items() <= then.items() for now, then in zip(after, before, strict=True))
        if not self.asked:
            return
        # Of a job that was robbed of its entry, the record still says that it runs.
        named = {f"{lane}/{entry}" for lane, entry, _ in beat.stopping}
        records = [self.desk.record(key) for key in self.asked - self.ended.keys()]
        running = {record["p"] for record in records if record.get("s") == "X"}
        robbed = {self.desk.record(key).get("p") for key in self.lost}
        assert named - robbed == running & {f"{lane}/{entry}" for lane, entry in tokens} - robbed

    @rule(lane=st.sampled_from(LANES), number=st.integers(1, 2))
    def hand_back_what_is_stranded(self, lane: str, number: int) -> None:
        self.hand_back(lane, number)

    @rule(max_len=st.integers(0, 3), limit=st.integers(1, 3))
    def gc(self, max_len: int, limit: int) -> None:
        before = self.desk.waiting("dlq")
        self.desk.gc(max_len=max_len, idle_ms=0, limit=limit)
        for key in set(before) - set(self.desk.waiting("dlq")):
            self.forget(key)

    # Operators

    @rule(which=st.lists(ANY, min_size=1, max_size=3))
    def replay(self, which: list[int]) -> None:
        dead = self.desk.entries("dlq")
        chosen = [pick(dead, one) for one in which if dead]
        answers = self.desk.do(verbs.dead.replay, [entry for entry, _ in chosen]) if chosen else []
        for (_, fields), answer in zip(chosen, answers, strict=True):
            if answer == 1:
                self.ended.pop(fields["i"], None)
                self.tries[fields["i"]] = 0
                self.asked.discard(fields["i"])

    @rule(which=ANY)
    def forget_one(self, which: int) -> None:
        dead = self.desk.entries("dlq")
        if dead:
            entry, fields = pick(dead, which)
            assert self.desk.do(verbs.dead.forget, [entry]) == 1
            self.forget(fields["i"])

    @rule(limit=st.integers(1, 3))
    def purge(self, limit: int) -> None:
        purged = self.desk.do(verbs.queues.purge, LIFETIMES, limit)
        assert self.notice_the_end("purged") <= purged

    @rule(which=ANY)
    def time_passes_for_one_that_may_expire(self, which: int) -> None:
        mortal = [
            key
            for key, job in self.jobs.items()
            if "expires_ms" in job.carried and "E" in self.desk.record(key)
        ]
        if mortal:
            self.desk.redis.hset(self.desk.keys.record(pick(mortal, which)), "E", 1)

    @rule()
    def the_server_forgets_the_scripts(self) -> None:
        self.desk.redis.script_flush()

    # Sabotage

    @precondition(lambda self: len(self.jobs) > 2)
    @rule(which=ANY)
    def a_record_vanishes(self, which: int) -> None:
        key = pick(list(self.jobs), which)
        self.lose(key)
        self.desk.redis.delete(self.desk.keys.record(key), self.desk.keys.result(key))

    @rule(which=ANY, lane=st.sampled_from(LANES))
    def an_operator_deletes_a_pending_entry(self, which: int, lane: str) -> None:
        pending = list(self.desk.pending(lane))
        there = dict(self.desk.entries(lane))
        known = [entry for entry in pending if entry in there and there[entry]["i"] not in self.lost]
        if known:
            entry = pick(known, which)
            self.lose(there[entry]["i"])
            self.desk.redis.xdel(self.desk.keys[lane], entry)

    # What must hold

    @invariant()
    def every_job_is_in_exactly_one_place(self) -> None:
        audit(self.desk.redis, APP, unfinished=True, lost=[f"{QUEUE}:{key}" for key in self.lost])

    @invariant()
    def no_job_is_lost_and_no_outcome_changes(self) -> None:
        going_on = self.asked - self.ended.keys()
        stopping = self.stopping() if going_on else set[str]()
        assert stopping - self.lost <= going_on
        for key in self.jobs:
            record = self.desk.record(key)
            assert record, f"job {key} is lost"
            if key in self.ended:
                letter, result = self.ended[key]
                assert record["s"] == letter
                assert self.desk.result(key) == result
            else:
                assert record.get("s", "Q") in "QXLR", f"job never ended: {key}"
                assert record.get("s") != "X" or key not in self.asked or key in stopping
            assert int(record.get("n", 0)) == self.tries[key] or record["s"] == "D"

    @invariant()
    def an_entry_that_no_executor_has_taken_has_woken_one_of_those_that_sleep(self) -> None:
        self.hear()
        asleep = self.asleep()
        for lane in READ:
            assert all(lane in lanes for who, lanes in READS.items() if who in asleep[lane])
            if READS.keys() & (asleep[""] | asleep[lane]) and self.untaken(lane):
                assert any(lane in lanes for lanes in self.rung.values()), lane

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.subscription.__exit__()
            self.desk.close()

    def drain(self) -> None:
        """All executors are gone, one new one comes, and everything comes to its end."""
        for key in self.desk.due("sched"):
            self.desk.cancel(key, why="drained")
        self.notice_the_end("drained")
        for _ in range(20):
            for lane in LANES:
                self.hand_back(lane, 1000)
            self.desk.do(verbs.queues.promote, 1000)
            deliveries = self.desk.fetch("eve", lanes=LANES).deliveries
            self.notice_the_end("expired", "asked")
            self.settle([(delivery, "S") for delivery in deliveries])
        self.desk.do(verbs.executors.beat, "eve", 0, [])
        assert self.stopping() <= self.lost
        audit(self.desk.redis, APP, lost=[f"{QUEUE}:{key}" for key in self.lost])
        assert {self.desk.record(key)["s"] for key in self.jobs} <= set("SNDK")
        assert set(self.desk.everywhere()) - self.lost == set(self.desk.waiting("dlq")) - self.lost
        stats = self.desk.stats()
        for kind, number in self.outcomes.items():
            assert stats[kind] >= number

    # The walker's own book-keeping

    def hear(self) -> list[tuple[str, str]]:
        """What each executor has received since the last call: (executor, message)."""
        heard = [(self.bells[bell], message) for bell, message in self.subscription.heard()]
        for executor, message in heard:
            what, _, lane = message.partition(" ")
            assert what in ("look", "due", "stop")
            if what == "look":
                assert lane in READS[executor]
                self.rung[executor].add(lane)
        return heard

    def stopping(self) -> set[str]:
        """The jobs that beats look at, because they were asked to stop."""
        return {shown(job) for job in cast("set[bytes]", self.desk.redis.smembers(self.desk.keys["stop"]))}

    def asleep(self) -> dict[str, set[str]]:
        """The executors in each set of sleepers."""
        pipeline = self.desk.redis.pipeline(transaction=False)
        for lane in ("", *READ):
            pipeline.smembers(self.desk.sleepers_key(lane))
        return {
            lane: {shown(name) for name in names}
            for lane, names in zip(("", *READ), pipeline.execute(), strict=True)
        }

    def sleeps(self, who: str) -> bool:
        return any(who in names for names in self.asleep().values())

    def untaken(self, lane: str) -> bool:
        """Whether the lane has an entry that was delivered to no executor."""
        pending = self.desk.pending(lane)
        return any(entry not in pending for entry, _ in self.desk.entries(lane))

    def settle(self, batch: list[tuple[Delivery, str]]) -> None:
        if not batch:
            return
        owners = {delivery.token for delivery, _ in batch if self.owns(delivery)}
        outcomes = [(delivery, an_outcome(kind, delivery)) for delivery, kind in batch]
        answers = self.desk.do(verbs.runs.finish, [Settled(*each) for each in outcomes], LIFETIMES)
        for (delivery, outcome), answer in zip(outcomes, answers, strict=True):
            # Of an entry that was robbed, the record is left to show whose it was.
            owned = delivery.token in owners or (answer == 1 and delivery.key in self.lost)
            assert (answer == 1) == (owned and delivery.token not in self.settled)
            assert answer != 2 or delivery.token in self.settled
            if answer == 1:
                self.write_down(delivery, outcome)

    def owns(self, delivery: Delivery) -> bool:
        return delivery.entry in self.desk.pending(delivery.lane)

    def write_down(self, delivery: Delivery, outcome: Outcome) -> None:
        self.settled.add(delivery.token)
        stops = delivery.key in self.asked and outcome.kind not in "SNK"
        self.outcomes["K" if stops else outcome.kind] += 1
        if delivery.key in self.lost:
            return
        assert delivery.key not in self.ended
        if stops:
            self.end(delivery.key, "K", ASKED)
        elif outcome.kind == "R":
            self.tries[delivery.key] += 1
        elif outcome.kind == "U":  # as if the half second had passed already
            self.desk.redis.zadd(self.desk.keys["sched"], {delivery.key: 1})
        elif outcome.kind != "Z":
            self.end(delivery.key, outcome.kind, outcome.value.decode())

    def end(self, key: str, kind: str, envelope: str) -> None:
        assert key not in self.ended
        self.ended[key] = (kind, [envelope] if kind != "N" else [])

    def forget(self, key: str) -> None:
        """It was dead and has gone for good."""
        if key in self.jobs:
            assert self.desk.record(key) == {}
            assert self.desk.result(key) == []
            del self.jobs[key], self.ended[key]
            self.asked.discard(key)

    def lose(self, key: str) -> None:
        """It was robbed of something it cannot do without."""
        self.jobs.pop(key, None)
        self.ended.pop(key, None)
        self.lost.add(key)

    def hand_back(self, lane: str, number: int) -> None:
        pending = list(self.desk.pending(lane))[:number]
        if pending:
            self.desk.release(Entry(lane, entry) for entry in pending)

    def notice_the_end(self, *reasons: str) -> int:
        """Write down which jobs have been ended for one of these reasons since; answers how many."""
        before = len(self.ended)
        for key in [key for key in self.jobs if key not in self.ended]:
            why = self.desk.record(key).get("y", "")
            if why == "crash_loop" and why in reasons:
                (envelope,) = self.desk.result(key)
                self.end(key, "D", envelope)
            elif why in reasons:
                self.end(key, "K", f'{{"cancelled":"{why}"}}')
        return len(self.ended) - before


def pick(things: list[T], which: int) -> T:
    return things[which % len(things)]


def an_outcome(kind: str, delivery: Delivery) -> Outcome:
    """An outcome whose result no other run would write."""
    mine = delivery._replace(args=b"").token
    failure = FAILURE._replace(message=repr(mine))
    return {
        "S": succeeded(f'"{mine}"'.encode(), HOUR),
        "N": succeeded(b"", HOUR),
        "D": died(failure, 1, HOUR),
        "R": Outcome("R", b"0", failure_to_wire(failure, 0)),
        "Z": Outcome("Z", b"@1"),
        "U": not_known(failure, 0, HOUR),
        "K": cancelled(repr(mine), HOUR),
    }[kind]


@pytest.mark.timeout(900)  # thousands of steps, perhaps on a busy machine
@pytest.mark.both_servers
def test_any_walk_keeps_every_job_in_one_place_and_every_outcome(server: Server) -> None:
    run_state_machine_as_test(
        type("Walk", (Walk,), {"server": server}),
        settings=settings(
            max_examples=WALKS,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            phases=(Phase.explicit, Phase.generate, Phase.shrink),
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.filter_too_much,
                HealthCheck.data_too_large,
            ],
        ),
    )
    server.flush()
