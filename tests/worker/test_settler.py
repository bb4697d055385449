"""The settler: every outcome is written to its own job, and every answer belongs to its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from structlog.typing import EventDict

from fennelq.broker.broker import ANSWER_TIMEOUT, Broker
from fennelq.broker.connection import address_of
from fennelq.broker.dispatch import MOST_BYTES
from fennelq.broker.trouble import ReplyError
from fennelq.broker.verb import MOST_JOBS, Verb
from fennelq.broker.verbs.runs import Settled
from fennelq.model.job import Delivery, JobFailure
from fennelq.model.outcome import DEAD, SUCCESS, Outcome, died, succeeded
from fennelq.worker.bus import JobLost, RunsEnded
from fennelq.worker.processes.config import ExecutorConfig
from fennelq.worker.running.held import Answer
from fennelq.worker.running.settler import MOST_UNSETTLED_BYTES, Backlog, Settler, Share
from tests.broker.desk import LIFETIMES, Desk, a_job
from tests.worker.states import Answered, state_of

OVERHEAD = 100
"""What a batch reckons for an outcome besides its value and its error."""
FULL = 2 * ExecutorConfig().concurrency
"""The outcomes for which there is room."""

Refusal = BaseException | None


class Reluctant(Broker):
    """Counts the jobs of each settling call, and refuses as many calls as there are refusals, one after another."""

    def __init__(self, url: str) -> None:
        super().__init__(address_of(url))
        self.calls: list[int] = []
        self.called = asyncio.Event()
        self.refusals: list[Refusal] = []
        self.held_up: dict[str, asyncio.Event] = {}
        """Replies about these queues wait for their event."""

    async def run(self, verb: Verb[Any], within: float = ANSWER_TIMEOUT) -> Any:
        assert verb.script.name == "finish"
        self.calls.append((len(verb.args) - 2 - len(LIFETIMES)) // 4)
        self.called.set()
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            raise refusal
        reply = await super().run(verb, within)
        if (may_arrive := self.held_up.get(str(verb.args[1]))) is not None:
            await may_arrive.wait()
        return reply


class Settling:
    """A settler, and its answer for each job."""

    def __init__(self, broker: Reluctant) -> None:
        self.broker = broker
        self.answers: list[tuple[str, Answer]] = []
        self.lost: list[str] = []
        """The jobs that were announced as lost."""
        self.ended: list[tuple[str, list[str]]] = []
        """The queue and the jobs of each fact about runs that have ended."""
        state = state_of(broker)
        state.bus.subscribe(JobLost, lambda fact: self.lost.append(fact.delivery.id))
        state.bus.subscribe(
            RunsEnded, lambda fact: self.ended.append((fact.queue, [run.delivery.id for run in fact.runs]))
        )
        state.held = Answered(self._hear)
        self.settler = Settler(state)

    async def settle(self, *outcomes: tuple[Delivery, Outcome]) -> dict[str, Answer]:
        """Hand these over at once; the answers when all are written, by job."""
        for delivery, outcome in outcomes:
            self.settler.settle_now(delivery, outcome)
        async with asyncio.timeout(20):
            await self.settler.drain()
        assert len(dict(self.answers)) == len(self.answers)
        return dict(self.answers)

    def _hear(self, settled: Settled, answer: Answer) -> None:
        self.answers.append((settled.delivery.id, answer))


@pytest.fixture
async def settling(redis_url: str) -> AsyncIterator[Settling]:
    broker = Reluctant(redis_url)
    yield Settling(broker)
    await broker.close()


def taken(desk: Desk, *names: str) -> list[Delivery]:
    """These jobs, in our hands."""
    for start in range(0, len(names), 100):
        desk.enqueue(*(a_job(name) for name in names[start : start + 100]))
    queue = desk.keys.queue
    return [delivery._replace(queue=queue) for delivery in desk.take(free=1000)]


def value(name: str) -> Outcome:
    return succeeded(f'"{name}"'.encode(), 60_000)


def results(desk: Desk, names: Sequence[str]) -> dict[str, list[str]]:
    return {name: desk.result(name) for name in names}


async def test_every_job_of_every_queue_gets_its_own_outcome_and_answer(
    settling: Settling, desk: Desk, other: Desk
) -> None:
    """Those in the middle are lost: an answer that moved by one place would show."""
    mails, others = taken(desk, *"abcd"), taken(other, *"vwxyz")
    desk.release(mails[1:2])
    other.release(others[3:])
    both = [delivery for pair in zip(mails, others, strict=False) for delivery in pair] + others[4:]
    answers = await settling.settle(*((delivery, value(delivery.key)) for delivery in both))
    assert {job for job, answer in answers.items() if answer is Answer.LOST} == {
        "mail:b",
        "other:y",
        "other:z",
    }
    assert {job for job, answer in answers.items() if answer is Answer.SETTLED} == {
        *("mail:a", "mail:c", "mail:d"),
        *("other:v", "other:w", "other:x"),
    }
    assert sorted(settling.lost) == ["mail:b", "other:y", "other:z"]
    assert sorted(settling.ended) == [
        ("mail", ["mail:a", "mail:c", "mail:d"]),
        ("other", ["other:v", "other:w", "other:x"]),
    ]
    assert results(desk, "abcd") == {n: [f'{{"ok":"{n}"}}'] if n != "b" else [] for n in "abcd"}
    assert results(other, "vwxyz") == {n: [f'{{"ok":"{n}"}}'] if n in "vwx" else [] for n in "vwxyz"}


async def test_when_all_runs_of_a_batch_are_lost_there_is_no_fact_about_runs_that_have_ended(
    settling: Settling, desk: Desk
) -> None:
    deliveries = taken(desk, "a", "b")
    desk.release(deliveries)
    await settling.settle(*((delivery, value(delivery.key)) for delivery in deliveries))
    assert sorted(settling.lost) == ["mail:a", "mail:b"]
    assert settling.ended == []


async def test_what_was_settled_before_by_the_same_run_has_an_answer_of_its_own(
    settling: Settling, desk: Desk
) -> None:
    one, two = taken(desk, "1", "2")
    desk.finish([one], value("1"))
    assert await settling.settle((one, value("1")), (two, value("2"))) == {
        "mail:1": Answer.SETTLED_BEFORE,
        "mail:2": Answer.SETTLED,
    }


async def test_a_call_carries_a_hundred_outcomes_at_most(settling: Settling, desk: Desk) -> None:
    names = [str(n) for n in range(2 * MOST_JOBS + 50)]
    held = taken(desk, *names)
    answers = await settling.settle(*((delivery, value(delivery.key)) for delivery in held))
    assert settling.broker.calls == [MOST_JOBS, MOST_JOBS, 50]
    assert answers == {f"mail:{name}": Answer.SETTLED for name in names}
    assert results(desk, names) == {name: [f'{{"ok":"{name}"}}'] for name in names}


@pytest.mark.parametrize("error", [0, 1000])
async def test_a_call_carries_a_megabyte_at_most(settling: Settling, desk: Desk, error: int) -> None:
    """With the overhead, two of these are just too large together."""
    held = taken(desk, "1", "2")
    large = of_size(MOST_BYTES // 2 - OVERHEAD + 1, error)
    answers = await settling.settle(*((delivery, large) for delivery in held))
    assert settling.broker.calls == [1, 1]
    first = Answer.NEW_ERROR if error else Answer.SETTLED
    assert answers == {"mail:1": first, "mail:2": Answer.SETTLED}


async def test_outcomes_that_just_fit_are_one_call(settling: Settling, desk: Desk) -> None:
    held = taken(desk, "1", "2")
    large = of_size(MOST_BYTES // 2 - OVERHEAD, 1000)
    await settling.settle(*((delivery, large) for delivery in held))
    assert settling.broker.calls == [2]


def of_size(size: int, error: int) -> Outcome:
    """An outcome whose value and error have so many bytes together."""
    failure = died(JobFailure("ValueError", "x" * error), 1, 1000).error if error else b""
    return Outcome(DEAD if error else SUCCESS, b"v" * (size - len(failure)), failure, ttl_ms=1000)


async def test_a_batch_that_is_refused_for_one_of_it_is_settled_one_by_one(
    settling: Settling, desk: Desk
) -> None:
    held = taken(desk, *"abcd")
    desk.release(held[2:3])
    settling.broker.refusals = [ReplyError("ERR something is wrong with one of these")]
    answers = await settling.settle(*((delivery, value(delivery.key)) for delivery in held))
    assert settling.broker.calls == [4, 1, 1, 1, 1]
    assert answers == {
        "mail:a": Answer.SETTLED,
        "mail:b": Answer.SETTLED,
        "mail:c": Answer.LOST,
        "mail:d": Answer.SETTLED,
    }
    assert results(desk, "abcd") == {n: [f'{{"ok":"{n}"}}'] if n != "c" else [] for n in "abcd"}


async def test_a_batch_is_sent_whole_until_the_server_takes_it(
    settling: Settling, desk: Desk, logged: list[EventDict]
) -> None:
    held = taken(desk, "1", "2")
    settling.broker.refusals = [ConnectionResetError("gone"), ReplyError("OOM command not allowed")]
    answers = await settling.settle(*((delivery, value(delivery.key)) for delivery in held))
    assert settling.broker.calls == [2, 2, 2]
    assert answers == {"mail:1": Answer.SETTLED, "mail:2": Answer.SETTLED}
    trouble, over = logged
    assert (trouble["event"], over["event"]) == ("redis_trouble", "redis_is_back")
    assert "has no memory left for writes (OOM)" in trouble["problem"]


async def test_a_single_outcome_that_is_refused_is_sent_again(
    settling: Settling, desk: Desk, logged: list[EventDict]
) -> None:
    (held,) = taken(desk, "1")
    settling.broker.refusals = [ReplyError("ERR for now")]
    assert await settling.settle((held, value("1"))) == {"mail:1": Answer.SETTLED}
    assert settling.broker.calls == [1, 1]
    (line,) = (line for line in logged if line["event"] == "trouble")
    assert (line["queue"], line["outcomes"]) == ("mail", 1)


async def test_outcomes_are_not_written_again_after_an_error_that_follows_their_writing(
    settling: Settling, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug")

    settler = settling.settler
    monkeypatch.setattr(Answered, "settled", broken)
    for held in taken(desk, "1", "2"):
        settler.settle_now(held, value(held.key))
    (writing,) = (task for task in asyncio.all_tasks() if task.get_name() == "settling")
    with pytest.raises(ValueError, match="a bug"):
        await writing
    assert settling.broker.calls == [2]
    assert not settler.backlog.busy


@pytest.mark.parametrize(
    ("refusal", "longest"),
    [
        (ConnectionResetError("gone"), [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]),
        (ReplyError("ERR for now"), [1.0, 2.0, 4.0, 5.0, 5.0]),
    ],
)
async def test_between_two_attempts_there_is_a_pause_that_grows(
    settling: Settling,
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Exception,
    longest: list[float],
) -> None:
    """A server in trouble gets no storm of calls; and only a person can mend a queue that refuses an outcome."""
    pauses: list[float] = []
    shares: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    def chosen(least: float, most: float) -> float:
        shares.append(least / most)
        return most

    monkeypatch.setattr("fennelq.worker.running.settler.asyncio.sleep", noted)
    monkeypatch.setattr("fennelq.worker.running.settler.random.uniform", chosen)
    (held,) = taken(desk, "1")
    settling.broker.refusals = [refusal] * len(longest)
    await settling.settle((held, value("1")))
    assert [seconds for seconds in pauses if seconds > 0] == longest  # to drain gives other tasks their turn
    assert shares == [pytest.approx(0.1)] * len(longest)


async def test_an_outcome_for_which_there_is_room_is_written_once(settling: Settling, desk: Desk) -> None:
    (held,) = taken(desk, "1")
    assert settling.settler.offer(Settled(held, value("1")))
    await settling.settler.drain()
    assert (settling.answers, settling.broker.calls) == ([("mail:1", Answer.SETTLED)], [1])


@pytest.mark.audit(unfinished=True)
async def test_a_queue_that_refuses_an_outcome_takes_no_room_from_others_until_it_is_written(
    settling: Settling, desk: Desk, other: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    settler = settling.settler
    settler.backlog = Backlog(1, MOST_UNSETTLED_BYTES)
    refused, next_one, beyond = taken(desk, "1", "2", "3")
    (free,) = taken(other, "x")
    may_try_again, sleep = asyncio.Event(), asyncio.sleep
    pausing = asyncio.Event()

    async def held_up(seconds: float) -> None:
        if seconds:
            pausing.set()
            await may_try_again.wait()
        await sleep(0)

    settling.broker.refusals = [ReplyError("ERR for now")]
    monkeypatch.setattr("fennelq.worker.running.settler.asyncio.sleep", held_up)
    assert settler.offer(Settled(refused, value("1")))
    assert not settler.offer(Settled(free, value("x")))
    await pausing.wait()
    assert settler.offer(Settled(free, value("x")))
    may_try_again.set()
    await settler.drain()
    assert settler.offer(Settled(next_one, value("2")))
    assert not settler.offer(Settled(beyond, value("3")))
    await settler.drain()
    assert dict(settling.answers) == dict.fromkeys(["mail:1", "other:x", "mail:2"], Answer.SETTLED)


@pytest.mark.audit(unfinished=True)
async def test_a_batch_that_is_cancelled_gives_its_room_back(settling: Settling, desk: Desk) -> None:
    """The first page of it is written, the second is not answered: an executor that falls over must come to its end."""
    names = [str(n) for n in range(MOST_JOBS + 50)]
    settling.broker.refusals = [None, asyncio.CancelledError()]
    answers = await settling.settle(*((delivery, value(delivery.key)) for delivery in taken(desk, *names)))
    assert answers == {f"mail:{name}": Answer.SETTLED for name in names[:MOST_JOBS]}
    backlog = settling.settler.backlog
    assert (backlog.jobs, backlog.bytes, backlog.busy) == (0, 0, False)


async def test_outcomes_that_come_while_others_are_written_wait_and_are_one_call(
    settling: Settling, desk: Desk
) -> None:
    first, *others = taken(desk, *"abcd")
    may_arrive = settling.broker.held_up["mail"] = asyncio.Event()
    settling.settler.settle_now(first, value("a"))
    await settling.broker.called.wait()
    for held in others:
        settling.settler.settle_now(held, value(held.key))
        await asyncio.sleep(0)
    assert settling.broker.calls == [1]
    may_arrive.set()
    async with asyncio.timeout(20):
        await settling.settler.drain()
    assert settling.broker.calls == [1, 3]
    assert dict(settling.answers) == dict.fromkeys([f"mail:{key}" for key in "abcd"], Answer.SETTLED)


async def test_when_everything_is_written_no_task_is_left(settling: Settling, desk: Desk) -> None:
    others = asyncio.all_tasks()
    (held,) = taken(desk, "1")
    await settling.settle((held, value("1")))
    assert asyncio.all_tasks() == others


@pytest.mark.audit(unfinished=True)
async def test_when_the_writing_of_a_batch_is_cancelled_what_waits_behind_it_is_written(
    settling: Settling, desk: Desk
) -> None:
    under_way, waits = taken(desk, "1", "2")
    settling.broker.held_up["mail"] = asyncio.Event()
    others = asyncio.all_tasks()
    settling.settler.settle_now(under_way, value("1"))
    (writing,) = asyncio.all_tasks() - others
    await settling.broker.called.wait()
    settling.settler.settle_now(waits, value("2"))
    settling.broker.held_up.clear()
    writing.cancel()
    await asyncio.wait([writing])
    async with asyncio.timeout(20):
        await settling.settler.drain()
    assert settling.answers == [("mail:2", Answer.SETTLED)]


async def test_an_outcome_whose_writing_is_cancelled_before_it_began_is_written_with_the_next(
    settling: Settling, desk: Desk
) -> None:
    first, second = taken(desk, "1", "2")
    others = asyncio.all_tasks()
    settling.settler.settle_now(first, value("1"))
    (writing,) = asyncio.all_tasks() - others
    writing.cancel()
    await asyncio.wait([writing])
    answers = await settling.settle((second, value("2")))
    assert answers == {"mail:1": Answer.SETTLED, "mail:2": Answer.SETTLED}
    assert settling.broker.calls == [2]


async def test_an_outcome_that_is_cancelled_while_it_waits_for_room_is_written_all_the_same(
    settling: Settling, desk: Desk
) -> None:
    (held,) = taken(desk, "1")
    backlog, others = settling.settler.backlog, Share()
    backlog.add(others, FULL, 0)
    coming = asyncio.create_task(settling.settler.settle(Settled(held, value("1"))))
    await asyncio.sleep(0)
    coming.cancel()
    await asyncio.wait([coming])
    backlog.remove(others, FULL, 0)
    await settling.settler.drain()
    assert settling.answers == [("mail:1", Answer.SETTLED)]
    assert (backlog.jobs, backlog.bytes) == (0, 0)


async def test_an_outage_is_over_for_the_settler_when_an_outcome_is_written(
    settling: Settling, desk: Desk, logged: list[EventDict]
) -> None:
    settling.broker.refusals = [ReplyError("OOM command not allowed")]
    (held,) = taken(desk, "1")
    assert await settling.settle((held, value("1"))) == {"mail:1": Answer.SETTLED}
    assert [line["event"] for line in logged] == ["redis_trouble", "redis_is_back"]


async def test_to_drain_waits_for_every_queue_without_looking_all_the_time(
    settling: Settling, desk: Desk, other: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mail,), (slow,) = taken(desk, "1"), taken(other, "x")
    may_arrive = settling.broker.held_up["other"] = asyncio.Event()
    turns: list[float] = []
    sleep = asyncio.sleep

    async def counted(seconds: float) -> None:
        turns.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr("fennelq.worker.running.settler.asyncio.sleep", counted)
    settling.settler.settle_now(mail, value("1"))
    settling.settler.settle_now(slow, value("x"))
    draining = asyncio.create_task(settling.settler.drain())
    while len(settling.answers) < 1:
        await sleep(0)
    for _ in range(20):
        await sleep(0)
    assert (draining.done(), len(turns)) == (False, 0)
    may_arrive.set()
    await draining
    assert dict(settling.answers) == dict.fromkeys(["mail:1", "other:x"], Answer.SETTLED)


async def test_to_drain_is_to_wait_for_every_answer(settling: Settling, desk: Desk) -> None:
    (held,) = taken(desk, "1")
    settling.settler.settle_now(held, value("1"))
    assert settling.answers == []
    await settling.settler.drain()
    assert settling.answers == [("mail:1", Answer.SETTLED)]


async def test_to_drain_waits_for_an_outcome_that_has_just_got_room(settling: Settling, desk: Desk) -> None:
    (held,) = taken(desk, "1")
    backlog, others = settling.settler.backlog, Share()
    backlog.add(others, FULL, 0)
    coming = asyncio.create_task(settling.settler.settle(Settled(held, value("1"))))
    await asyncio.sleep(0)
    backlog.remove(others, FULL, 0)
    await settling.settler.drain()
    assert (coming.done(), settling.answers) == (True, [("mail:1", Answer.SETTLED)])
