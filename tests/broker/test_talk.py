"""Conversations: several steps with Redis, written once; a runner sends their rounds and returns the replies."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, TypeVar, cast

import pytest

from fennelq import clock
from fennelq.broker import verbs
from fennelq.broker.blocking import BlockingBroker
from fennelq.broker.broker import Broker
from fennelq.broker.connection import address_of
from fennelq.broker.keys import queue_keys
from fennelq.broker.patience import Patience
from fennelq.broker.talk import (
    Finding,
    Finds,
    Found,
    Pause,
    Round,
    Talk,
    Within,
    ask,
    ask_all,
    at_most,
    patient,
    pause,
    together,
)
from fennelq.broker.trouble import LinkDown, ReplyError
from fennelq.broker.verb import Command, Step, as_is
from fennelq.errors import BrokerUnavailable

A = TypeVar("A")


def echo(number: int) -> Command[int]:
    return Command(["ECHO", number], int)


def double(number: int) -> Talk[int]:
    return (yield from ask(echo(number))) * 2


def twice(number: int) -> Talk[int]:
    first = yield from double(number)
    return (yield from double(first))


def nothing(number: int) -> Talk[int]:
    return number
    yield


def conversed(talk: Generator[Any, Any, A]) -> tuple[A, list[list[int]]]:
    """What a conversation returns, and the numbers of each of its rounds: every step is replied to with its number."""
    rounds: list[list[int]] = []
    replies: list[int] | None = None
    while True:
        try:
            asked: Round = talk.send(replies)
        except StopIteration as end:
            return cast("A", end.value), rounds
        assert not isinstance(asked, Pause | Within)
        replies = [cast("int", step.words[1]) for step in asked if isinstance(step, Command)]
        rounds.append(replies)


def test_steps_follow_each_other_and_a_conversation_may_hold_another() -> None:
    assert conversed(twice(3)) == (12, [[3], [6]])


def test_steps_that_are_asked_together_share_a_round() -> None:
    assert conversed(ask_all(map(echo, [1, 2, 3]))) == ([1, 2, 3], [[1, 2, 3]])


def test_asking_for_nothing_takes_no_round() -> None:
    assert conversed(ask_all(list[Command[int]]())) == ([], [])
    assert conversed(together(list[Talk[int]]())) == ([], [])


def test_conversations_side_by_side_share_their_rounds_and_end_one_by_one() -> None:
    talks = [twice(1), nothing(7), double(3), ask_all(map(echo, [4, 5]))]
    assert conversed(together(talks)) == ([4, 7, 6, [4, 5]], [[1, 3, 4, 5], [2]])


def test_a_conversation_beside_others_may_not_pause() -> None:
    with pytest.raises(AssertionError, match="may not pause"):
        conversed(together([pause(1.0)]))


def failing(number: int, error: Exception) -> Talk[int]:
    """It asks twice, and returns -1 when the second reply is this error."""
    first = yield from ask(echo(number))
    try:
        return first + (yield from ask(Command(["NOSUCH"], int)))
    except type(error):
        return -1


async def test_an_error_reaches_the_conversation_that_asked_and_no_other(redis_url: str) -> None:
    talks = [twice(1), failing(2, ReplyError("")), double(3)]
    expected = [4, -1, 6]
    broker, blocking = Broker(address_of(redis_url)), BlockingBroker(address_of(redis_url))
    assert await broker.converse(together(talks)) == expected
    talks = [twice(1), failing(2, ReplyError("")), double(3)]
    assert blocking.converse(together(talks)) == expected
    await broker.close()
    blocking.close()


async def test_an_error_that_no_part_expects_ends_all_of_them(redis_url: str) -> None:
    broker = Broker(address_of(redis_url))
    before, after = long(1), long(1)
    with pytest.raises(ReplyError, match="unknown command"):
        await broker.converse(together([before, failing(2, ValueError()), after]))
    assert ended(before)
    assert ended(after)
    await broker.close()


def long(number: int) -> Talk[int]:
    """It asks more often than the others."""
    return (yield from twice((yield from twice(number))))


def ended(talk: Talk[Any]) -> bool:
    """Whether it has ended, or was closed."""
    return getgeneratorstate(talk) == GEN_CLOSED


def test_of_several_errors_the_first_is_raised() -> None:
    first, second = ReplyError("ERR first"), ReplyError("ERR second")
    talk = ask_all(map(echo, [1, 2, 3]))
    next(talk)
    with pytest.raises(ReplyError) as raised:
        talk.send([1, first, second])
    assert raised.value is first


async def test_of_several_steps_an_error_is_raised_and_all_are_sent(redis_url: str) -> None:
    broker, blocking = Broker(address_of(redis_url)), BlockingBroker(address_of(redis_url))
    nosuch: list[Command[int]] = [echo(1), Command(["NOSUCH"], int), echo(2)]
    with pytest.raises(ReplyError, match="unknown command"):
        await broker.converse(ask_all(nosuch))
    with pytest.raises(ReplyError, match="unknown command"):
        blocking.converse(ask_all(nosuch))
    await broker.close()
    blocking.close()


async def test_a_reply_that_one_step_cannot_read_does_not_concern_the_others(redis_url: str) -> None:
    def asked() -> Talk[list[object]]:
        return list((yield [echo(1), Command(["ECHO", "text"], int), echo(2)]))

    broker, blocking = Broker(address_of(redis_url)), BlockingBroker(address_of(redis_url))
    for first, error, last in (await broker.converse(asked()), blocking.converse(asked())):
        assert (first, last) == (1, 2)
        assert isinstance(error, ValueError)
    await broker.close()
    blocking.close()


# Patience


def rounds_of(talk: Talk[A], *received: list[Any] | None) -> tuple[list[Round], A]:
    """The rounds of a conversation that receives these replies, and what it returns."""
    rounds = [next(talk)]
    try:
        for replies in received:
            asked = talk.send(replies)
            rounds = [*rounds, asked]
    except StopIteration as end:
        return rounds, cast("A", end.value)
    raise AssertionError("the conversation goes on")


DOWN = LinkDown("gone")
ADDRESS = address_of("redis://127.0.0.1:1/0")


def test_a_round_is_repeated_until_redis_replies_and_only_the_steps_without_a_reply() -> None:
    steps = [echo(1), echo(2), echo(3)]
    rounds, replies = rounds_of(
        patient(ask_all(steps), Patience(30, ADDRESS)), [1, DOWN, DOWN], None, [DOWN, 3], None, [2]
    )
    assert replies == [1, 2, 3]
    assert [list(r.steps) for r in rounds if isinstance(r, Within)] == [steps, steps[1:], steps[1:2]]
    assert [type(r) for r in rounds] == [Within, Pause, Within, Pause, Within]
    assert all(0 < r.seconds <= 30 for r in rounds if isinstance(r, Within))


def test_an_error_that_waiting_does_not_help_is_a_reply_at_once() -> None:
    def replies() -> Talk[list[object]]:
        return list((yield [echo(1), echo(2), echo(3)]))

    denied, wrong = ReplyError("NOPERM this key"), ReplyError("ERR wrong")
    rounds, (first, unavailable, last) = rounds_of(
        patient(replies(), Patience(30, ADDRESS)), [1, denied, wrong]
    )
    assert (len(rounds), first, last) == (1, 1, wrong)
    assert isinstance(unavailable, BrokerUnavailable)
    assert (unavailable.retriable, unavailable.__cause__) == (False, denied)


def test_when_time_is_up_what_is_open_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)

    def replies() -> Talk[list[object]]:
        return list((yield [echo(1), echo(2)]))

    talk = patient(replies(), Patience(5, ADDRESS))
    assert isinstance(next(talk), Within)
    assert isinstance(talk.send([1, DOWN]), Pause)
    now = 106.0
    with pytest.raises(StopIteration) as end:
        talk.send(None)
    first, unavailable = end.value.value
    assert first == 1
    assert isinstance(unavailable, BrokerUnavailable)
    assert unavailable.__cause__ is DOWN


@pytest.mark.parametrize(("renewable", "left"), [(True, 5.0), (False, 1.0)])
def test_a_reply_renews_the_patience_unless_it_is_for_all_steps_together(
    monkeypatch: pytest.MonkeyPatch, renewable: bool, left: float
) -> None:
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    talk = patient(twice(1), Patience(5, ADDRESS, renewable=renewable))
    next(talk)
    now = 104.0
    second = talk.send([1])
    assert isinstance(second, Within)
    assert second.seconds == left


def test_what_is_done_between_two_rounds_costs_no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation may pause for longer than the patience lasts, or call a function of the user."""
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)

    def paused() -> Talk[int]:
        first = yield from double(1)
        yield from pause(60)
        return first + (yield from double(2))

    talk = patient(paused(), Patience(5, ADDRESS))
    assert isinstance(next(talk), Within)
    assert talk.send([1]) == Pause(60)
    now = 160.0
    assert talk.send(None) == Within([echo(2)], 5.0)
    with pytest.raises(StopIteration) as end:
        talk.send([2])
    assert end.value.value == 2 + 4


def test_a_conversation_that_sets_a_time_for_a_round_keeps_it() -> None:
    """Its errors are replies: such a round is not repeated."""

    def brief() -> Talk[object]:
        (reply,) = yield Within([echo(1)], 0.25)
        return reply

    asked = Within([echo(1)], 0.25)
    assert rounds_of(patient(brief(), Patience(5, ADDRESS)), [DOWN]) == ([asked], DOWN)


def test_after_the_last_round_the_patience_is_renewed_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known when Redis has replied last."""
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    patience = Patience(5, ADDRESS)
    talk = patient(ask(echo(1)), patience)
    next(talk)
    now = 104.0
    with pytest.raises(StopIteration):
        talk.send([1])
    assert (patience.since, patience.left()) == (104.0, 5.0)


def undeterred(*rounds: list[Command[int]]) -> Talk[list[list[object]]]:
    """It takes errors for replies and goes on."""
    received = list[list[object]]()
    for steps in rounds:
        received.append([*(yield steps)])
    return received


def test_a_reply_that_is_an_error_renews_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    talk = patient(undeterred([echo(1), echo(2)], [echo(3)]), Patience(5, ADDRESS))
    next(talk)
    now = 104.0
    assert talk.send([1, ReplyError("NOPERM this key")]) == Within([echo(3)], 5.0)


def test_when_time_is_up_it_is_up_for_later_rounds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when some steps of the last round had a reply."""
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    patience = Patience(5, ADDRESS)
    talk = patient(undeterred([echo(1)], [echo(2), echo(3)], [echo(4)]), patience)
    next(talk)
    talk.send([1])
    assert isinstance(talk.send([2, DOWN]), Pause)
    now = 106.0
    with pytest.raises(StopIteration) as end:
        talk.send(None)
    first, (second, unavailable), (last,) = end.value.value
    assert (first, second) == ([1], 2)
    assert isinstance(unavailable, BrokerUnavailable)
    assert isinstance(last, BrokerUnavailable)
    assert patience.since == 100.0


def test_the_timeout_of_an_attempt_that_was_cut_short_explains_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error of the attempt before it does."""
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    talk = patient(undeterred([echo(1)]), Patience(5, ADDRESS))
    next(talk)
    assert isinstance(talk.send([DOWN]), Pause)
    assert isinstance(talk.send(None), Within)
    now = 105.0
    assert isinstance(talk.send([TimeoutError("no reply")]), Pause)
    with pytest.raises(StopIteration) as end:
        talk.send(None)
    ((unavailable,),) = end.value.value
    assert isinstance(unavailable, BrokerUnavailable)
    assert unavailable.__cause__ is DOWN


def for_five_seconds(talk: Talk[int]) -> Talk[int]:
    return patient(talk, Patience(5, ADDRESS))


@pytest.mark.parametrize("limited", [for_five_seconds, partial(at_most, 5)])
def test_a_conversation_ends_with_the_one_that_limits_it(limited: Callable[[Talk[int]], Talk[int]]) -> None:
    inner = twice(1)
    outer = limited(inner)
    next(outer)
    outer.close()
    assert ended(inner)


def test_a_deadline_is_for_all_rounds_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    talk = at_most(0.5, twice(1))
    first = next(talk)
    now = 100.4
    second = talk.send([1])
    assert isinstance(first, Within)
    assert isinstance(second, Within)
    assert first.seconds == 0.5
    assert second.seconds == pytest.approx(0.1)
    with pytest.raises(StopIteration) as end:
        talk.send([2])
    assert end.value.value == 4


def test_what_is_found_on_the_way_is_read_as_part_of_another_conversation() -> None:
    def finding() -> Finding[int]:
        for number in (1, 2):
            yield Found((yield from double(number)))

    def all_of_it() -> Talk[list[int]]:
        found, finds = list[int](), Finds(finding())
        while (one := (yield from finds.next())) is not None:
            found.append(one)
        assert (yield from finds.next()) is None
        return found

    assert conversed(all_of_it()) == ([2, 4], [[1], [2]])


def test_without_a_loop_verbs_and_commands_share_a_round_trip_and_a_forgotten_script_is_taught(
    redis_url: str,
) -> None:
    broker = BlockingBroker(address_of(redis_url))
    promote = verbs.queues.promote(queue_keys("shop", "mail"), 1)
    broker.ask(Command(["SCRIPT", "FLUSH"], as_is))
    steps: list[Step[Any]] = [echo(1), promote, echo(2)]
    replies = broker.send_all(steps)
    assert (replies[0], replies[2]) == (1, 2)
    with pytest.raises(ReplyError, match="unknown command"):
        broker.send_all([echo(1), Command(["NOSUCH"], as_is), echo(2)])
    assert broker.ask(echo(3)) == 3
    broker.close()


async def test_a_command_is_sent_by_the_same_words_with_a_loop(redis_url: str) -> None:
    broker = Broker(address_of(redis_url))
    assert await broker.ask(echo(5)) == 5
    await broker.close()
