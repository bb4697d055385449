"""A random walk over the scripts: executors that lose replies, pause and come back as zombies, clients that repeat
themselves, operators with sharp tools. After every step every job is in exactly one place, nothing that was
delivered can be forgotten, and no outcome, once written, ever changes. A job that was asked to stop runs no more, and
ends as cancelled unless it succeeds. A job that two executors run ends once. While an executor sleeps that reads a
lane, an entry of this lane that no executor has taken has woken one. While the queue is paused, no job starts and no
executor is woken, or callers create no job. What a survey counts is what a recount finds.

Longer walks: `WALKS=5000 pytest tests/broker/test_walk.py`. A failure prints its steps, shortened, as a program.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, Literal, TypeVar, cast

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
from fennelq.broker.verbs.survey import Run
from fennelq.model.job import Delivery
from fennelq.model.outcome import Outcome, cancelled, died, failure_to_wire, not_known, succeeded
from fennelq.model.pause import QueueSide
from fennelq.model.wire import AnyWireJob
from tests.broker.before import Before
from tests.broker.desk import APP, FAILURE, LIFETIMES, QUEUE, READ, Bells, Desk, Entry, a_job, shown
from tests.broker.recount import facts_of, numbers_of, recounted, recounted_runs
from tests.kit.audit import audit
from tests.kit.jobs import altered
from tests.kit.server import Server

T = TypeVar("T")
Settles = Callable[[Sequence[Settled]], list[int]]

WALKS: Final = int(os.environ.get("WALKS", "60"))
STEPS: Final = 60

READS: Final = {"anna": READ, "berta": READ, "clara": ("s:high",), "dora": ("s", "s:low")}
"""Executors, and the lanes that each reads."""
SLEEPERS: Final = ("anna", "clara", "dora")
"""One for each set of sleepers. Of several, Redis wakes any one, and Hypothesis could not repeat a walk."""
EXECUTORS = st.sampled_from(list(READS))
ANY: Final = st.integers(0, 10_000)
"""Which one of those there are."""
ONLY: Final[list[QueueSide | None]] = [None, "consume", "enqueue"]
SIDES = st.sampled_from(ONLY)
RARELY: Final = st.sampled_from([False, False, False, True])
OFTEN: Final = st.sampled_from([True, True, True, False])
KINDS = st.sampled_from("SSSNDDRRZKUG")
GATES: Final = (
    "c1:a",
    "c2:b",
    "r3600000000/1:c",
    "r0/1:d",
    "t1:e",
    "c1:a t1:e",
    "c2:b r3600000000/2:c/x t1:f/1",
)
LANES: Final = (*READ, QUARANTINE)
FINGERPRINTS: Final = ("0000beef", "1111beef")
HOUR = 3_600_000
STATES: Final = {"=": "QLXRSNDK", "~": "QLXRSNDK", "<": "QL", ">": "QLXR", "^": "QLR"}
"""The states of a job in which it holds its key, by the first letter of the field."""
SUPERSEDED: Final = '{"cancelled":"superseded"}'
ASKED: Final = '{"cancelled":"asked"}'


@st.composite
def calls(draw: st.DrawFn) -> dict[str, object]:
    """The options of a job; due times are long past or far away, so that no clock decides about a step."""
    idempotency = draw(st.sampled_from(["", "", "", "app:welcome:a", "app:welcome:b"]))
    dedupe = draw(st.sampled_from(["", "<", ">", "^"])) if idempotency else ""
    return {
        "priority": draw(st.sampled_from(["normal", "normal", "high", "low"])),
        "at_ms": draw(st.sampled_from([0, 0, 0, 1, 1, 10**13])),
        "expires_ms": draw(st.sampled_from([0, 0, 0, HOUR])),
        "idempotency": idempotency,
        "window_ms": draw(st.sampled_from([0, HOUR])) if idempotency and not dedupe else 0,
        "dedupe": dedupe,
        "duplicate": draw(st.sampled_from(["", "replace"])) if dedupe == "<" else "",
        "wait_ms": draw(st.sampled_from([0, 0, HOUR])) if dedupe == "<" else 0,
        "max_wait_ms": draw(st.sampled_from([0, 2 * HOUR])) if dedupe == "<" else 0,
        "nonce": draw(st.sampled_from(["", "mine"])) if not dedupe else "",
        "keep_ms": draw(st.sampled_from([0, 0, HOUR])),
        "gates": draw(st.sampled_from(["", "", *GATES])),
    }


class Walk(RuleBasedStateMachine):
    """What the walker knows: whom it sent, what it was handed, and which ends it has seen."""

    server: Server

    def __init__(self) -> None:
        super().__init__()
        self.server.flush()
        self.desk = Desk(self.server)
        self.before = Before(self.desk, "before_groups.json", {})
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
        self.superseded: set[str] = set()
        """Of the last batch that was settled: older calls, which do not run again."""
        self.asked: set[str] = set()
        """Running jobs that were asked to stop."""
        self.doubled: set[str] = set()
        """Jobs that had a second copy."""
        self.lost: set[str] = set()
        """Robbed of a record or an entry: nothing is asked of them any more."""
        self.paused: set[QueueSide] = set()
        self.met: set[str] = set()
        """Executors that sleep because consuming is paused."""
        self.numbers = count(1)
        self.index_has: Literal["", "too few", "too many"] = ""
        """What is wrong with the index of dead jobs, until `index` has looked. Errors of both kinds could hide each
        other."""

    # Clients

    @initialize(drawn=st.lists(calls(), min_size=1, max_size=6))
    def begin(self, drawn: list[dict[str, object]]) -> None:
        for call in drawn:
            self.enqueue(call)

    @rule(call=calls())
    def enqueue(self, call: dict[str, object]) -> None:
        number = next(self.numbers)
        job = a_job(str(number), args=f"[{number}]".encode(), **call)
        holder = self.holder_of(call)
        (answer,) = self.desk.enqueue(job)
        assert (shown(answer) if isinstance(answer, bytes) else "") == holder
        if answer == 1:
            assert "enqueue" not in self.paused or job.carried.get("keep_ms")
            self.jobs[job.key] = job
        elif isinstance(answer, list):
            assert "enqueue" in self.paused
            assert not job.carried.get("keep_ms")
            assert self.desk.record(job.key) == {}
        else:
            record = self.desk.record(holder)
            replaces = call["duplicate"] or call["wait_ms"] or call["dedupe"] == "^"
            replaced = record["k"][0] in "<^" and replaces
            assert (record["a"] == f"[{number}]") == bool(replaced)
            assert record.get("g", "") == call["gates"] or not replaced

    @rule(
        number=st.integers(2, 8),
        gates=st.sampled_from(GATES),
        lane=st.sampled_from(["normal", "high", "low"]),
    )
    def enqueue_jobs_with_the_same_limits(self, number: int, gates: str, lane: str) -> None:
        for _ in range(number):
            self.enqueue({"gates": gates, "priority": lane})

    @rule(number=st.integers(2, 5), priority=st.sampled_from(["normal", "high", "low"]))
    def enqueue_a_batch(self, number: int, priority: str) -> None:
        batch = [a_job(str(next(self.numbers)), priority=priority) for _ in range(number)]
        answers = self.desk.enqueue(*batch)
        if "enqueue" in self.paused:
            assert all(isinstance(answer, list) for answer in answers)
        else:
            assert answers == [1] * number
            self.jobs |= {job.key: job for job in batch}

    @rule(most=st.integers(1, 4), gates=st.sampled_from(["", *GATES]), drops=OFTEN, number=st.integers(1, 2))
    def enqueue_within_a_bound(self, most: int, gates: str, drops: bool, number: int) -> None:
        batch = [a_job(str(next(self.numbers)), gates=gates) for _ in range(number)]
        if drops:
            answers = self.desk.do(verbs.jobs.displace, batch, most, LIFETIMES)
        else:
            answers = self.desk.do(verbs.jobs.enqueue, batch, most)
        for job, answer in zip(batch, answers, strict=True):
            if answer == 1:
                assert "enqueue" not in self.paused
                self.jobs[job.key] = job
            else:
                assert "enqueue" in self.paused or (answer[0] >= most and not drops)
                assert self.desk.record(job.key) == {}
        assert self.notice_the_end("dropped", "asked") <= answers.count(1)
        if 1 in answers and not (drops or self.lost):
            assert sum(map(self.number_untaken, LANES)) + len(self.desk.in_lines()) <= most

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
        ((code, _, envelope),) = self.desk.do(verbs.jobs.watch, channel, [key], LIFETIMES)
        if code == "end" and key not in self.ended:
            assert self.notice_the_end("expired", "asked") == 1
            assert key in self.ended
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
        if "consume" in self.paused:
            assert (catch.deliveries, catch.drained) == ([], True)
            self.met |= {who} if sleeps else set()
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
        deliveries = self.desk.fetch("isolde", free=free, lanes=[QUARANTINE]).deliveries
        assert not deliveries or "consume" not in self.paused
        self.receive(deliveries, reply_lost)

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
        self.met.discard(who)
        assert not self.sleeps(who)
        self.hear()
        self.pass_on(who)

    @rule(lane=st.sampled_from(["", *READ]), number=st.sampled_from([1, 3, 30]))
    def killed_executors_leave_their_names(self, lane: str, number: int) -> None:
        """Fewer than a script skips."""
        if "consume" in self.paused:
            self.desk.redis.sadd(self.desk.keys["halted"], f"killed-{next(self.numbers)}")
        elif len(self.desk.sleepers(lane)) + number < 100:
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
    @rule(which=ANY)
    def double(self, which: int) -> None:
        """The executor of a run that takes long wants a second one. It may be a zombie."""
        delivery = pick(self.delivered[-12:], which)
        record = self.desk.record(delivery.key)
        goes_on = record.get("s") == "X" and record.get("p") == f"{delivery.lane}/{delivery.entry}"
        may = goes_on and not {"S", "C"} & record.keys() and delivery.lane != QUARANTINE
        owner = record.get("w", "").partition(" ")[0]
        (answer,) = self.desk.do(verbs.runs.double, owner, [(delivery.lane, delivery.entry)])
        assert (answer == 1) == (may and "consume" not in self.paused) or delivery.key in self.lost
        self.doubled |= {delivery.key} if answer else set()

    @rule(
        gates=st.sampled_from(["", *GATES]),
        ends=st.lists(st.tuples(st.booleans(), KINDS), max_size=3),
        really=RARELY,
    )
    def two_executors_run_a_job(self, gates: str, ends: list[tuple[bool, str]], really: bool) -> None:
        """Then its runs end, or they go on."""
        if not really:
            return
        self.enqueue({"gates": gates})
        for who in ("anna", "berta"):
            self.fetch(who, free=100, sleeps=False, reply_lost=False)
            if self.delivered:
                self.double(len(self.delivered[-12:]) - 1)
        for is_first, kind in ends:
            runs = {f"{one.lane}/{one.entry}": one for one in self.delivered[-2:]}
            copies = (
                [runs[copy] for copy in self.copies(self.delivered[-1].key) if copy in runs] if runs else []
            )
            if len(copies) == 2:
                self.settle([(copies[is_first], kind)])

    @precondition(lambda self: self.delivered)
    @rule(which=ANY, number=st.integers(1, 3))
    def release(self, which: int, number: int) -> None:
        first = which % len(self.delivered[-12:])
        self.desk.release(self.delivered[-12:][first : first + number])

    @rule(who=EXECUTORS)
    def good_bye(self, who: str) -> None:
        self.desk.do(verbs.executors.close_consumer, who)
        self.met.discard(who)
        assert not self.sleeps(who)
        self.hear()
        self.pass_on(who)

    # Pausing

    @rule(only=SIDES, really=RARELY)
    def pause(self, only: QueueSide | None, really: bool) -> None:
        if not really:
            return
        sleeping = {who for who in READS if self.sleeps(who)}
        pause = self.desk.pause(*sides_of(only))
        self.paused |= sides_of(only)
        assert (pause.consuming, pause.enqueuing) == ("consume" in self.paused, "enqueue" in self.paused)
        if "consume" in self.paused:
            self.met |= sleeping

    @rule(only=SIDES)
    def resume(self, only: QueueSide | None) -> None:
        before = set(self.paused)
        resumed = self.desk.resume(*sides_of(only))
        self.paused -= sides_of(only)
        assert (resumed.before is not None) == bool(before)
        woken = {self.bells[bell] for bell, message in self.subscription.heard() if message == "look s"}
        assert woken == (self.met if "consume" not in self.paused else set())
        for who in woken:
            # Each of them asks for jobs of all lanes that it reads, whether there are any or not.
            self.rung[who].update(READS[who])
        self.met -= woken

    # Services

    @rule(limit=st.integers(1, 3))
    def promote(self, limit: int) -> None:
        self.desk.do(verbs.queues.promote, limit)

    @rule()
    def time_passes_for_rates(self) -> None:
        rates: list[bytes] = [*self.desk.redis.scan_iter(f"{self.desk.keys.prefix}rate:*")]
        if rates:
            self.desk.redis.delete(*rates)
        turn = self.desk.keys["turn"]
        for gate in cast("list[bytes]", self.desk.redis.zrange(turn, 0, -1)):
            self.desk.redis.zadd(turn, {gate: 1})

    @rule(limit=st.integers(1, 3))
    def mend(self, limit: int) -> None:
        """Without sabotage there is nothing to mend."""
        mended = self.desk.do(verbs.queues.mend, limit)
        assert not mended.slots or self.lost

    @rule(limit=st.integers(1, 3), max_deliveries=st.sampled_from([2, 3, 4]))
    def sweep(self, limit: int, max_deliveries: int) -> None:
        """All leases ran out: jobs go to others while their executors know nothing of it."""
        self.desk.recover(limit=limit, max_deliveries=max_deliveries)
        self.met &= self.desk.halted()
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
        running = {
            place for record in records if record.get("s") == "X" for place in (record["p"], twin_of(record))
        }
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

    @rule(limit=st.integers(1, 4), pages=st.integers(1, 3))
    def index(self, limit: int, pages: int) -> None:
        for _ in range(pages):
            done = self.desk.do(verbs.dead.index, limit)
            assert not done.anew or self.index_has
            if done.anew or not done.more:
                self.index_has = ""

    @precondition(lambda self: self.delivered)
    @rule(which=ANY)
    def an_executor_of_the_release_before_buries_a_job(self, which: int) -> None:
        """It knows no groups."""
        self.settle([(pick(self.delivered[-12:], which), "D")], self.before.settle)

    @precondition(lambda self: self.index_has != "too few")
    @rule(which=ANY, really=RARELY)
    def a_program_of_the_release_before_forgets_one(self, which: int, really: bool) -> None:
        dead = self.desk.entries("dlq")
        if dead and really:
            entry, fields = pick(dead, which)
            self.before.remove("forget", [entry])
            self.forget(fields["i"])
            self.index_has = "too many"

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

    @precondition(lambda self: self.index_has != "too many")
    @rule(name=st.sampled_from(["dlq:g", "dlq:f", "dlq:l"]), really=RARELY)
    def a_key_of_the_index_vanishes(self, name: str, really: bool) -> None:
        if really and self.desk.redis.delete(self.desk.keys[name]):
            self.index_has = "too few"

    @precondition(lambda self: self.index_has != "too many")
    @rule(fingerprint=st.sampled_from(["", "not hex", *FINGERPRINTS]), really=RARELY)
    def a_damaged_entry_is_among_the_dead(self, fingerprint: str, really: bool) -> None:
        if really:
            job = f"damaged-{next(self.numbers)}"
            self.lost.add(job)
            self.desk.stray("dlq", i=job, f=fingerprint)
            self.index_has = "too few"

    @precondition(lambda self: self.index_has != "too few")
    @rule(which=ANY, really=RARELY)
    def an_operator_deletes_a_dead_entry(self, which: int, really: bool) -> None:
        dead = self.desk.entries("dlq")
        if dead and really:
            entry, fields = pick(dead, which)
            self.lose(fields["i"])
            self.desk.redis.xdel(self.desk.keys["dlq"], entry)
            self.index_has = "too many"

    # What must hold

    @invariant()
    def every_job_is_in_exactly_one_place(self) -> None:
        lost = [f"{QUEUE}:{key}" for key in self.lost]
        audit(self.desk.redis, APP, unfinished=True, lost=lost, index_is_wrong=bool(self.index_has))

    @invariant()
    def no_job_is_lost_and_no_outcome_changes(self) -> None:
        going_on = self.asked - self.ended.keys()
        stopping = self.stopping() if going_on else set[str]()
        assert stopping - self.lost <= going_on
        for key, (record, result) in self.desk.records(self.jobs).items():
            assert record, f"job {key} is lost"
            if key in self.ended:
                letter, expected = self.ended[key]
                assert record["s"] == letter
                assert result == expected
            else:
                assert record.get("s", "Q") in "QXLR", f"job never ended: {key}"
                assert record.get("s") != "X" or key not in self.asked or key in stopping
            assert int(record.get("n", 0)) == self.tries[key] or record["s"] == "D"

    @invariant()
    def a_pause_is_known_and_puts_no_executor_where_a_job_would_wake_it(self) -> None:
        pause = self.desk.do(verbs.queues.paused)
        assert (pause is not None and pause.consuming) == ("consume" in self.paused)
        assert (pause is not None and pause.enqueuing) == ("enqueue" in self.paused)
        assert self.desk.halted() & READS.keys() == self.met
        if "consume" in self.paused:
            assert not any(self.asleep().values())

    @invariant()
    def an_entry_that_no_executor_has_taken_has_woken_one_of_those_that_sleep(self) -> None:
        self.hear()
        asleep = self.asleep()
        for lane in READ:
            assert all(lane in lanes for who, lanes in READS.items() if who in asleep[lane])
            sleeping = READS.keys() & (asleep[""] | asleep[lane])
            # An executor is not woken for the second copy of a job that it runs itself.
            if sleeping and any(sleeping - {owner} for owner in self.untaken(lane)):
                assert any(lane in lanes for lanes in self.rung.values()), lane

    @invariant()
    def a_survey_finds_what_a_recount_finds(self) -> None:
        survey = self.desk.do(verbs.survey.survey)
        seen, there = numbers_of(survey), recounted(self.desk)
        if self.lost:  # an entry was removed by hand: it is still pending, or its job is counted in its line
            different = {"lanes", "in_lines", "lines"}
            seen, there = ({k: v for k, v in one.items() if k not in different} for one in (seen, there))
        assert seen == there

    @invariant()
    def the_jobs_that_run_are_those_whose_records_name_a_pending_entry(self) -> None:
        runs: list[Run] = []
        cursor: str | None = None
        while cursor != "":
            page = self.desk.do(verbs.survey.running, cursor or "", 3)
            runs += page.runs
            cursor = page.cursor
        assert len(runs) == len(facts_of(runs))
        assert facts_of(runs) == recounted_runs(self.desk)

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.subscription.__exit__()
            self.desk.close()

    def drain(self) -> None:
        """All executors are gone, one new one comes, and everything comes to its end."""
        self.desk.resume()
        for key in self.desk.due("sched"):
            self.desk.cancel(key, why="drained")
        self.notice_the_end("drained")
        for _ in range(200):
            self.time_passes_for_rates()
            self.desk.do(verbs.queues.mend, 1000)
            for lane in LANES:
                self.hand_back(lane, 1000)
            self.desk.do(verbs.queues.promote, 1000)
            deliveries = self.desk.fetch("eve", lanes=LANES).deliveries
            self.notice_the_end("expired", "asked")
            self.settle([(delivery, "S") for delivery in deliveries])
            if not deliveries and not self.desk.in_lines():
                break
        self.time_passes_for_rates()
        self.desk.do(verbs.queues.promote, 1000)
        # Slots are looked for only where a job waits for one.
        left = [key for key in self.desk.keys_of_limits() if ":slots:" not in key or not self.lost]
        assert left == []
        self.desk.do(verbs.executors.beat, "eve", 0, [])
        assert self.stopping() <= self.lost
        self.desk.index(3)
        audit(self.desk.redis, APP, lost=[f"{QUEUE}:{key}" for key in self.lost])
        assert {self.desk.record(key)["s"] for key in self.jobs} <= set("SNDK")
        assert set(self.desk.everywhere()) - self.lost == set(self.desk.waiting("dlq")) - self.lost
        stats = self.desk.stats()
        for kind, number in self.outcomes.items():
            assert stats[kind] >= number

    # The walker's own book-keeping

    def holder_of(self, call: dict[str, object]) -> str:
        """The job that holds the key of this call; empty when the key is free."""
        name = str(call.get("idempotency") or "-")
        job = self.desk.holder(name) or "-"
        record = self.desk.record(job)
        status, kind = record.get("s", "Q"), record.get("k", "-")[:1]
        if record.get("k", "-")[1:] != name or status not in STATES[kind]:
            return ""
        if kind in "=~" or status == "X":
            return job
        starts, blank = int(record.get("w", "0").rpartition(" ")[2]), int(record.get("b", 0))
        expired = starts <= blank and int(record.get("E", 10**14)) < self.desk.now()
        return "" if "C" in record or expired or (kind == "<" and starts > blank) else job

    def hear(self) -> list[tuple[str, str]]:
        """What each executor has received since the last call: (executor, message)."""
        heard = [(self.bells[bell], message) for bell, message in self.subscription.heard()]
        for executor, message in heard:
            what, _, lane = message.partition(" ")
            assert what in ("look", "due", "stop", "outrun")
            if what == "look":
                assert "consume" not in self.paused
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
        return who in self.desk.halted() or any(who in names for names in self.asleep().values())

    def untaken(self, lane: str) -> list[str]:
        """Of each entry of the lane that was delivered to no executor, the executor that runs its job."""
        pending = self.desk.pending(lane)
        jobs = [fields["i"] for entry, fields in self.desk.entries(lane) if entry not in pending]
        records = [self.desk.record(job) if job in self.doubled else {} for job in jobs]
        return [one.get("w", "").partition(" ")[0] if one.get("s") == "X" else "" for one in records]

    def number_untaken(self, lane: str) -> int:
        pending = self.desk.pending(lane)
        return sum(entry not in pending for entry, _ in self.desk.entries(lane))

    def copies(self, key: str) -> tuple[str, str]:
        """Where the two runs of a job are; empty when there is none."""
        record = self.desk.record(key) if key in self.doubled else {}
        if record.get("s") != "X":
            return "", ""
        return record["p"], twin_of(record) if " " in record.get("S", "") else ""

    def settle(self, batch: list[tuple[Delivery, str]], by: Settles | None = None) -> None:
        if not batch:
            return
        copies = {delivery.key: self.copies(delivery.key) for delivery, _ in batch}
        tokens = {f"{delivery.lane}/{delivery.entry}" for delivery, _ in batch}
        if len(batch) > 1 and any(tokens.issuperset(both) for both in copies.values()):
            # How the second one ends depends on the first.
            for one in batch:
                self.settle([one], by)
            return
        owners = {delivery.token for delivery, _ in batch if self.owns(delivery)}
        outcomes = [(delivery, an_outcome(kind, delivery)) for delivery, kind in batch]
        self.superseded = {
            delivery.key for delivery, kind in batch if kind in "RZUG" and self.is_older(delivery.key)
        }
        answers = (by or self.desk.settle)([Settled(*each) for each in outcomes])
        for (delivery, outcome), answer in zip(outcomes, answers, strict=True):
            # Of an entry that was robbed, the record is left to show whose it was.
            owned = delivery.token in owners or (answer == 1 and delivery.key in self.lost)
            assert (answer == 1) == (owned and delivery.token not in self.settled)
            assert answer != 2 or delivery.token in self.settled
            if answer == 1 and all(copies[delivery.key]) and self.is_dropped(delivery.key, outcome):
                # The other copy goes on.
                self.settled.add(delivery.token)
                other = self.copies(delivery.key)
                assert other[1] == ""
                assert f"{delivery.lane}/{delivery.entry}" not in other
                assert other[0] in copies[delivery.key]
            elif answer == 1:
                self.write_down(delivery, outcome)

    def is_dropped(self, key: str, outcome: Outcome) -> bool:
        """Whether a run with this outcome does not end its job while another one goes on."""
        return outcome.kind not in "SNK" and key not in self.asked and key not in self.lost

    def is_older(self, key: str) -> bool:
        """Whether a newer job has taken the key of this one, of the kind `^`, and was not cancelled."""
        name = self.desk.record(key).get("k", "-")
        newer = self.desk.holder(name[1:]) if name[0] == "^" else None
        record = self.desk.record(newer) if newer and newer != key else {}
        return bool(record) and record.get("s") != "K"

    def owns(self, delivery: Delivery) -> bool:
        return delivery.entry in self.desk.pending(delivery.lane)

    def write_down(self, delivery: Delivery, outcome: Outcome) -> None:
        self.settled.add(delivery.token)
        stops = delivery.key in self.asked and outcome.kind not in "SNK"
        superseded = not stops and delivery.key in self.superseded
        if stops or superseded or outcome.kind != "G":  # without a rate, it is a Z
            self.outcomes["K" if stops or superseded else outcome.kind] += 1
        if delivery.key in self.lost:
            return
        assert delivery.key not in self.ended
        if superseded:
            self.end(delivery.key, "K", SUPERSEDED)
        elif stops:
            self.end(delivery.key, "K", ASKED)
        elif outcome.kind == "R":
            self.tries[delivery.key] += 1
        elif outcome.kind == "U":  # as if the half second had passed already
            self.desk.redis.zadd(self.desk.keys["sched"], {delivery.key: 1})
        elif outcome.kind not in "ZG":
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
            if why in ("crash_loop", "dropped") and why in reasons:
                (envelope,) = self.desk.result(key)
                self.end(key, "D", envelope)
            elif why in reasons:
                self.end(key, "K", f'{{"cancelled":"{why}"}}')
        return len(self.ended) - before


def sides_of(only: QueueSide | None) -> set[QueueSide]:
    """The sides of a queue that an operator names."""
    return {only} if only else {"consume", "enqueue"}


def twin_of(record: dict[str, str]) -> str:
    """Where the second copy of the job is, or was."""
    return record.get("S", "").partition(" ")[0]


def pick(things: list[T], which: int) -> T:
    return things[which % len(things)]


def an_outcome(kind: str, delivery: Delivery) -> Outcome:
    """An outcome whose result no other run would write."""
    mine = delivery._replace(args=b"").token
    fingerprint = FINGERPRINTS[len(delivery.entry + delivery.key) % 2] if delivery.lane != "s:low" else ""
    failure = FAILURE._replace(message=repr(mine), fingerprint=fingerprint)
    return {
        "S": succeeded(f'"{mine}"'.encode(), HOUR),
        "N": succeeded(b"", HOUR),
        "D": died(failure, 1, HOUR),
        "R": Outcome("R", b"0", failure_to_wire(failure, 0)),
        "Z": Outcome("Z", b"@1"),
        "G": Outcome("G", b"+0"),
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
            phases=(
                Phase.explicit,
                Phase.generate,
                *((Phase.shrink,) if "NO_SHRINK" not in os.environ else ()),
            ),
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.filter_too_much,
                HealthCheck.data_too_large,
            ],
        ),
    )
    server.flush()
